// The tools to choose from, and the text for the chosen one.

import { type Config, recipeOf, tools } from "../configs.ts";
import type { Loadable } from "../loadable.ts";
import type { Tool } from "../recipes.ts";
import * as state from "../state.ts";
import { CopyButton } from "./CopyButton.tsx";
import { Problem } from "./Status.tsx";

interface Props {
  config: Loadable<Config>;
  tool: string;
}

export function ConfigBox({ config, tool }: Props) {
  if (config.state === "error") return <Problem message={config.message} />;
  const made = config.state === "ready" ? config.value : null;
  return (
    <div class="cure-config">
      <div class="cure-copy">
        <CopyConfig config={config} />
        <span class="muted">{recipeOf(tool)?.label ?? tool}</span>
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
  );
}

export function CopyConfig({ config }: { config: Loadable<Config> }) {
  const made = config.state === "ready" ? config.value : null;
  return <CopyButton label="Copy config" text={() => made?.text ?? ""} disabled={!made} />;
}

interface PickerProps {
  /** What is chosen; empty for what each suggestion names as its cure. */
  tool: string;
  offered?: Tool[];
  hasNone?: boolean;
}

/** One choice for the page: the tools of this model's framework first. */
export function ToolPicker({ tool, offered = tools.value, hasNone = false }: PickerProps) {
  const own = offered.filter(({ elsewhere }) => !elsewhere);
  const others = offered.filter(({ elsewhere }) => elsewhere);
  return (
    <label class="check cure-tool">
      Configs for
      <select
        aria-label="Framework"
        value={tool}
        onChange={(event) => {
          state.tool.value = event.currentTarget.value;
        }}
      >
        {hasNone && <option value="">what each suggestion names first</option>}
        <Options of={own} />
        {others.length > 0 && (
          <optgroup label="Other frameworks">
            <Options of={others} />
          </optgroup>
        )}
      </select>
    </label>
  );
}

function Options({ of }: { of: Tool[] }) {
  return (
    <>
      {of.map(({ tool, label }) => (
        <option key={tool} value={tool}>
          {label}
        </option>
      ))}
    </>
  );
}
