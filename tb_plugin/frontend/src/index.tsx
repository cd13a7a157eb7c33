// TensorBoard imports this module in the plugin's frame and calls render().

import { render as renderInto } from "preact";
import { App } from "./App.tsx";
import { start } from "./state.ts";
import base from "./style.css";
import { followTheme } from "./tensorboard.ts";
import detail from "./views/detail.css";
import graph from "./views/graph.css";
import profile from "./views/profile.css";
import suggestions from "./views/suggestions.css";
import trials from "./views/trials.css";

export function render(): void {
  const style = document.createElement("style");
  style.textContent = [base, detail, suggestions, trials, profile, graph].join("\n");
  document.head.append(style);
  document.documentElement.lang = "en";
  document.title = "Quantization";
  followTheme();
  start();
  renderInto(<App />, document.body);
}
