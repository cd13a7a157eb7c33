// The cells of the table of trials.

import { computed } from "@preact/signals";
import { bestSoFar, drop } from "../../compare.ts";
import type { GridCell } from "../../components/Grid.tsx";
import { formatNumber, formatScore, plural, signed, withUnit } from "../../format.ts";
import { numberAt, type Trial, textAt } from "../../records.ts";
import * as state from "../../state.ts";
import { table } from "../../trials.ts";
import { fallbackOf } from "../../trialtable.ts";
import { openFallback } from "./FallbackSet.tsx";
import { togglePick } from "./picks.ts";

const bests = computed(() => bestSoFar(table.value.runs.map(({ trial }) => trial)));

export function trialCell(row: number, column: string): GridCell {
  const found = table.value.runs[row];
  if (!found) return fp32Cell(row, column);
  const { run, trial, error } = found;
  if (column === "compare") return { content: <Tick run={run} /> };
  if (column === "run") {
    const isChosen = run === state.run.value;
    const also = trial && trial.name !== run ? `, logged as ${trial.name}` : "";
    return {
      content: run,
      title: `${run}${also}${isChosen ? " (the chosen run)" : ""}`,
      class: isChosen ? "trials-chosen" : "",
    };
  }
  if (!trial) return column === "accuracy" ? missing(error) : { content: "" };
  return loggedCell(trial, row, column);
}

/** Of the model that the trials are held against. */
function fp32Cell(row: number, column: string): GridCell {
  const title = "the fp32 model, as the trials tell of it";
  if (column === "run") return { content: "fp32", title, class: "trials-reference" };
  const found = table.value.columns.get(column);
  const value = found?.kind === "number" ? numberAt(found, row) : Number.NaN;
  if (Number.isNaN(value) || column === "drop") return { content: "" };
  return { content: column === "accuracy" ? formatScore(value) : formatNumber(value, found?.spec.unit), title };
}

function missing(error: string): GridCell {
  const text = error ? `could not be read: ${error}` : "no trial logged";
  return { content: <span class={error ? "wrong" : "muted"}>{text}</span>, title: text, class: "trials-across" };
}

function loggedCell(trial: Trial, row: number, column: string): GridCell {
  const found = table.value.columns.get(column)!;
  if (column === "target") return targetCell(trial, textAt(found, row));
  if (found.kind === "text") return { content: textAt(found, row), title: textAt(found, row).slice(0, 2000) };
  const value = numberAt(found, row);
  if (column === "fallback") return fallbackCell(trial, table.value.runs[row]!.run);
  if (Number.isNaN(value)) return { content: "–", title: "not logged", class: "none" };
  if (column === "accuracy")
    return { content: formatScore(value), title: `${value}${trial.lower_is_better ? ", lower is better" : ""}` };
  if (column === "best") {
    const isNew = bests.value[row]!.isNew;
    return {
      content: `${isNew ? "★ " : ""}${formatScore(value)}`,
      title: isNew ? "the best yet" : "an earlier trial was as good or better",
    };
  }
  if (column === "drop") return dropCell(trial);
  return { content: formatNumber(value, found.spec.unit), title: withUnit(value, found.spec.unit) };
}

function dropCell(trial: Trial): GridCell {
  const { absolute, relative } = drop(trial)!;
  const side = absolute === 0 ? "the same as" : absolute > 0 ? "worse than" : "better than";
  const share = Number.isNaN(relative) ? "" : `, ${withUnit(Math.abs(relative), "share")} of it`;
  const by = absolute === 0 ? "" : `${formatScore(Math.abs(absolute))} `;
  return {
    content: absolute > 0 ? formatScore(absolute) : signed(absolute, formatScore),
    title: `${by}${side} the baseline ${formatScore(trial.baseline!)}${absolute === 0 ? "" : share}`,
  };
}

function targetCell(trial: Trial, met: string): GridCell {
  if (!met) return { content: "–", title: "no target was given", class: "none" };
  const limit = `${trial.lower_is_better ? "at most" : "at least"} ${formatScore(trial.target!)} was asked for`;
  return {
    content: <span class={`verdict ${met === "met" ? "ok" : "bad"}`}>{met === "met" ? "✓ met" : "✗ missed"}</span>,
    title: limit,
  };
}

function fallbackCell(trial: Trial, run: string): GridCell {
  const ops = fallbackOf(trial);
  if (!ops.length) return { content: "–", title: "the trial names none (fallback=[…])", class: "none" };
  const most = 40;
  const rest = ops.length > most ? `\nand ${ops.length - most} more` : "";
  const label = `${plural(ops.length, "op")} in fp32 in ${run}: show which`;
  return {
    content: (
      <button type="button" class="link" aria-label={label} onClick={() => openFallback(run)}>
        {ops.length}
      </button>
    ),
    title: ops.slice(0, most).join("\n") + rest,
  };
}

function Tick({ run }: { run: string }) {
  const place = state.compared.value.indexOf(run);
  return (
    <label class="check">
      <input
        type="checkbox"
        aria-label={`Compare ${run}`}
        checked={place >= 0}
        onChange={(event) => {
          togglePick(run);
          // A refused tick changes no state, so nothing else would take it back.
          event.currentTarget.checked = state.compared.value.includes(run);
        }}
      />
      {place === 0 && <span class="muted">base</span>}
    </label>
  );
}
