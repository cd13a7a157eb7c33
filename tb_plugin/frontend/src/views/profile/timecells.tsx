// The cells of the table of times.

import type { GridCell } from "../../components/Grid.tsx";
import { formatNumber, formatTime } from "../../format.ts";
import { nameCell } from "../../opcolumns.tsx";
import {
  differenceText,
  type Entry,
  fusedText,
  intervalText,
  type Model,
  OUTCOME_WORDS,
  OUTSIDE,
  type Outcome,
  outcome,
} from "../../profile.ts";

export function cellOf(entry: Entry, column: string, models: Model[], longest: number): GridCell {
  switch (column) {
    case "name":
      return opCell(entry);
    case "type":
      return { content: entry.type, title: entry.type };
    case "count":
      return entry.name ? { content: formatNumber(entry.count, "count") } : { content: "–", class: "none" };
    case "time":
      return { content: <Bars entry={entry} models={models} longest={longest} />, title: timesOf(entry, models) };
    case "fp32":
      return timeCell(entry.fp32, entry.fp32P95);
    case "int8":
      return timeCell(entry.int8, entry.int8P95);
    case "convert":
      return entry.convert
        ? { content: formatTime(entry.convert), title: `${entry.convert} µs` }
        : { content: "–", class: "none", title: "none" };
    case "difference":
      return differenceCell(entry);
    case "speedup":
      return speedupCell(entry);
    default:
      return { content: percent(entry[column as "share" | "cumulative"]) };
  }
}

function opCell({ name, fused }: Entry): GridCell {
  if (!name)
    return {
      content: <em>{OUTSIDE}</em>,
      title: "What no op accounts for: the runtime itself, copies, waiting for threads",
    };
  return fused.length ? nameCell(name, `+ ${fused.length} fused`, `${name} ${fusedText(fused)}`) : nameCell(name);
}

function timeCell(median: number, p95: number): GridCell {
  if (Number.isNaN(median)) return { content: "–", class: "none", title: "not in this model" };
  return {
    content: formatTime(median),
    title: `median ${formatTime(median)}${Number.isNaN(p95) ? "" : `, p95 ${formatTime(p95)}`}`,
  };
}

const OUTCOME_CLASSES: Record<Outcome, string> = { faster: "", slower: "pf-slower", noise: "none", same: "" };

const ONE_SIDED: GridCell = { content: "–", class: "none", title: "it takes no time in one of the models" };

function differenceCell(entry: Entry): GridCell {
  if (Number.isNaN(entry.difference)) return ONE_SIDED;
  const text = differenceText(entry);
  const interval = intervalText(entry);
  const found = outcome(entry);
  return {
    content: found === "noise" ? OUTCOME_WORDS.noise : text,
    class: OUTCOME_CLASSES[found],
    title: `${text}${interval && `, ${interval}, 95 % interval for all ops together`}`,
  };
}

function speedupCell(entry: Entry): GridCell {
  if (!Number.isFinite(entry.speedup)) return ONE_SIDED;
  const found = outcome(entry);
  return {
    content: `${entry.speedup.toFixed(2)} ×`,
    class: OUTCOME_CLASSES[found],
    title: found === "slower" ? "slower in int8" : OUTCOME_WORDS[found],
  };
}

function Bars({ entry, models, longest }: { entry: Entry; models: Model[]; longest: number }) {
  const width = (time: number) => ({ width: `${longest > 0 ? (100 * (time || 0)) / longest : 0}%` });
  return (
    <span class="pf-bars" aria-hidden="true">
      {models.map((model) => (
        <span key={model}>
          <span class={`pf-bar ${model}`} style={width(entry[model])} />
          {model === "int8" && <span class="pf-bar conversion" style={width(entry.convert)} />}
        </span>
      ))}
    </span>
  );
}

/** Two digits always, so that they stand below each other. */
function percent(share: number): string {
  return Number.isNaN(share) ? "–" : `${(100 * share).toFixed(2)} %`;
}

function timesOf(entry: Entry, models: Model[]): string {
  const times = models.map((model) => `${model} ${formatTime(entry[model])}`).join(", ");
  return `${times}${entry.convert ? ` + ${formatTime(entry.convert)} conversion` : ""}`;
}
