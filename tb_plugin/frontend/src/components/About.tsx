import { plural } from "../format.ts";
import { readyValue } from "../loadable.ts";
import * as state from "../state.ts";
import { CopyButton } from "./CopyButton.tsx";

/** What was compared, and at which step. */
export function About() {
  const { steps, step } = state;
  const meta = readyValue(state.header.value)?.meta;
  const at = step.value ?? steps.value.at(-1) ?? 0;
  const notes = meta?.notes ?? [];
  return (
    <div class="about">
      {steps.value.length > 1 && (
        <label class="step">
          {/* What they are: a training logs one now and then, a probe and a profile are added to a diagnosis later. */}
          step {at} of {steps.value.at(-1)}
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
