import { plural } from "../format.ts";
import { readyValue } from "../loadable.ts";
import * as state from "../state.ts";
import { CopyButton } from "./CopyButton.tsx";

/** Steps that only add to one diagnosis are none to the reader, unless a link leads to an earlier one. */
function isChoice(): boolean {
  if (state.steps.value.length < 2) return false;
  return state.step.value !== null || readyValue(state.isOneDiagnosis.value) === false;
}

/** What the step has besides a comparison. */
function heldBy(): string {
  const held = [state.isProbed.value && "a probe", state.isTimed.value && "times"].filter(Boolean);
  return held.length ? `with ${held.join(" and ")}` : "";
}

/** What was compared, and at which step. */
export function About() {
  const { steps, step } = state;
  const meta = readyValue(state.header.value)?.meta;
  const at = step.value ?? steps.value.at(-1) ?? 0;
  const notes = meta?.notes ?? [];
  const held = heldBy();
  return (
    <div class="about">
      {isChoice() && (
        <label class="step">
          step {at} of {steps.value.at(-1)}
          {held && `: ${held}`}
          <input
            type="range"
            min={0}
            max={steps.value.length - 1}
            value={steps.value.indexOf(at)}
            aria-label="Step"
            aria-valuetext={`step ${at}`}
            onInput={(event) => {
              const place = Number(event.currentTarget.value);
              step.value = place === steps.value.length - 1 ? null : (steps.value[place] ?? null);
            }}
          />
        </label>
      )}
      {meta?.reference && (
        <span class="muted" title={`${meta.reference} against ${meta.quantized}`}>
          {fileOf(meta.reference)} → {fileOf(meta.quantized)}, {plural(meta.samples ?? 0, "sample")}
        </span>
      )}
      <CopyButton label="Copy link" text={() => state.link()} />
      {notes.length > 0 && (
        <details class="notes">
          <summary>{plural(notes.length, "note")}</summary>
          <ul>
            {notes.map((note) => (
              <li key={note}>{note}</li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

function fileOf(path = ""): string {
  return path.split(/[\\/]/).at(-1) ?? path;
}
