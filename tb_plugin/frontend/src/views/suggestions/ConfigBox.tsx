// The tools to choose from, and the text for the chosen one.

import { CopyButton } from "../../components/CopyButton.tsx";
import { Problem } from "../../components/Status.tsx";
import type { Loadable } from "../../loadable.ts";
import * as state from "../../state.ts";
import { type Config, tools } from "./setup.ts";

export function ConfigBox({ config, tool }: { config: Loadable<Config>; tool: string }) {
  if (config.state === "error") return <Problem message={config.message} />;
  const made = config.state === "ready" ? config.value : null;
  return (
    <div class="sg-config">
      <ToolList tool={tool} />
      <div class="sg-config-text">
        <div class="sg-copy">
          <CopyButton label="Copy config" text={() => made?.text ?? ""} disabled={!made} />
          {made?.checks.map(({ ok, text }) => (
            <span key={text} class={ok ? "sg-check" : "sg-check wrong"}>
              <span aria-hidden="true">{ok ? "✓" : "⚠"}</span> {text}
            </span>
          ))}
        </div>
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: long texts scroll, also by keyboard */}
        <pre tabIndex={0} role="group" aria-label="Config">
          {made?.text ?? "Loading the names of the tensors…"}
        </pre>
        {made?.note && <p class="muted">{made.note}</p>}
      </div>
    </div>
  );
}

function ToolList({ tool }: { tool: string }) {
  return (
    <select
      class="sg-tools"
      aria-label="Framework"
      // With more than one row it is a list instead of a menu that opens.
      size={Math.max(2, tools.value.length)}
      value={tool}
      onChange={(event) => {
        state.tool.value = event.currentTarget.value;
      }}
    >
      {tools.value.map(({ tool: id, label }) => (
        <option key={id} value={id} title={label}>
          {label}
        </option>
      ))}
    </select>
  );
}
