// The tools to choose from, and the text for the chosen one.

import { signal } from "@preact/signals";
import { type Config, tools } from "../configs.ts";
import { plural } from "../format.ts";
import type { Loadable } from "../loadable.ts";
import type { Tool } from "../recipes.ts";
import * as state from "../state.ts";
import { CopyButton } from "./CopyButton.tsx";
import { Problem } from "./Status.tsx";

interface Props {
  config: Loadable<Config>;
  tool: string;
  offered?: Tool[];
}

export function ConfigBox({ config, tool, offered = tools.value }: Props) {
  if (config.state === "error") return <Problem message={config.message} />;
  const made = config.state === "ready" ? config.value : null;
  return (
    <div class="cure-config">
      <ToolList tool={tool} offered={offered} />
      <div class="cure-config-text">
        <div class="cure-copy">
          <CopyConfig config={config} />
          {made?.checks.map(({ ok, text }) => (
            <span key={text} class={ok ? "cure-check" : "cure-check wrong"}>
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

export function CopyConfig({ config }: { config: Loadable<Config> }) {
  const made = config.state === "ready" ? config.value : null;
  return <CopyButton label="Copy config" text={() => made?.text ?? ""} disabled={!made} />;
}

/** Whether the tools of other frameworks are listed, too. */
const unfolded = signal(false);

function ToolList({ tool, offered }: { tool: string; offered: Tool[] }) {
  const others = offered.filter(({ elsewhere }) => elsewhere);
  const shown = offered.filter((one) => !one.elsewhere || unfolded.value || one.tool === tool);
  return (
    <div class="cure-tools">
      <select
        aria-label="Framework"
        // With more than one row it is a list instead of a menu that opens.
        size={Math.max(2, shown.length)}
        value={tool}
        onChange={(event) => {
          state.tool.value = event.currentTarget.value;
        }}
      >
        {shown.map(({ tool: id, label }) => (
          <option key={id} value={id} title={label}>
            {label}
          </option>
        ))}
      </select>
      {others.length > 0 && (
        <button
          type="button"
          class="link"
          aria-expanded={unfolded.value}
          onClick={() => {
            unfolded.value = !unfolded.value;
          }}
        >
          {unfolded.value ? "this framework's only" : `${plural(others.length, "tool")} of other frameworks`}
        </button>
      )}
    </div>
  );
}
