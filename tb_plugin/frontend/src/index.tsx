// TensorBoard imports this module in the plugin's frame and calls render().

import { render as renderInto } from "preact";
import { App } from "./App.tsx";
import { start } from "./state.ts";
import { STYLE } from "./style/index.ts";
import { followTheme } from "./tensorboard.ts";
import detail from "./views/detail.css";
import { VIEWS } from "./views/index.ts";

export function render(): void {
  const style = document.createElement("style");
  style.textContent = [STYLE, detail, ...VIEWS.map(({ css = "" }) => css)].join("\n");
  document.head.append(style);
  document.documentElement.lang = "en";
  document.title = "Quantization";
  followTheme();
  start(VIEWS.map(({ id }) => id));
  renderInto(<App />, document.body);
}
