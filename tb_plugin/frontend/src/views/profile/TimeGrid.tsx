// Time of each op or type: the numbers, and bars below each other.

import { useEffect, useMemo, useState } from "preact/hooks";
import { Grid, type GridCell, type GridColumn } from "../../components/Grid.tsx";
import { formatNumber, formatTime } from "../../format.ts";
import { nameCell } from "../../opcolumns.tsx";
import { matcher, nextSort, sorted } from "../../order.ts";
import {
  differenceText,
  type Entry,
  entryColumns,
  fusedText,
  type Grouping,
  intervalText,
  type Model,
  mainOf,
  OUTSIDE,
  outcome,
} from "../../profile.ts";
import type { NumberColumn } from "../../records.ts";
import { colourOf, scaleOf } from "../../scale.ts";
import * as state from "../../state.ts";
import { filter, SLOWEST_FIRST, sort } from "./controls.ts";

const BY_LOW = new Set(["name", "type", "speedup", "added"]);

interface Props {
  found: Entry[];
  by: Grouping;
  models: Model[];
  /** The column of the op table that the last column comes from, if the run has it. */
  error: NumberColumn | null;
  /** Place of the entry that has the chosen op; -1 if none has. */
  chosen: number;
  onOpen: (entry: number) => void;
}

export function TimeGrid({ found, by, models, error, chosen, onOpen }: Props) {
  const columns = useMemo(() => entryColumns(found), [found]);
  const longest = useMemo(() => found.reduce((most, { fp32, time }) => Math.max(most, fp32 || 0, time), 0), [found]);
  const scale = useMemo(() => (error ? scaleOf(error) : null), [error]);
  const shown = gridColumns(by, models, error !== null);
  // Another run may lack the column that the reader has sorted by.
  const keys = sort.value.every(({ column }) => shown.some(({ id }) => id === column)) ? sort.value : SLOWEST_FIRST;
  const rows = useMemo(() => {
    const matches = matcher({ text: filter.value, regex: false });
    const passing = found.flatMap(({ name, type, fused }, row) =>
      typeof matches === "string" || matches([name || OUTSIDE, type, ...fused].join(" ")) ? [row] : [],
    );
    return sorted(Uint32Array.from(passing), keys, columns);
  }, [found, columns, filter.value, keys]);
  const [here, setHere] = useState(-1);
  useEffect(() => setHere(chosen), [chosen, found]);
  return (
    <Grid
      label={by === "op" ? "Time per op" : "Time per type"}
      columns={shown}
      rows={rows}
      cell={(row, column) => {
        const entry = found[row]!;
        if (column !== "added") return cellOf(entry, column, models, longest);
        if (Number.isNaN(entry.addedDb)) return { content: "–", class: "none" };
        return {
          content: formatNumber(entry.addedDb, "dB"),
          background: scale ? colourOf(scale.level(entry.addedDb)) : "",
        };
      }}
      sort={keys}
      onSort={(column, add) => {
        sort.value = nextSort(keys, column, BY_LOW.has(column), add);
      }}
      active={here}
      onActive={(row) => {
        setHere(row);
        if (state.op.value) onOpen(row);
      }}
      onOpen={onOpen}
      empty={<p>Nothing passes the filter. Clear the search box.</p>}
    />
  );
}

const HELP = {
  op: "Name of the op; a click opens it. Fused: the runtime runs other ops as part of it, whose names are in the cell's tooltip.",
  type: "Type of op.",
  types: "Type of op; times are sums over its ops.",
  count: "How many ops of this type have a time.",
  bars: "Above the time in fp32, below that in int8; the hatched part is conversion. All bars share one scale.",
  bar: "The time as a bar. All bars share one scale.",
  fp32: "Time in the fp32 model; the 95th percentile is in the cell's tooltip.",
  int8: "Time in the quantized model without conversion; the 95th percentile is in the cell's tooltip.",
  convert: "Quantizing, dequantizing and reordering around it.",
  difference:
    "int8 with conversion minus fp32: above 0 it got slower. The 95 % interval is in the cell's tooltip. Inside the noise: the two cannot be told apart.",
  speedup: "fp32 over int8 with conversion; below 1 it got slower.",
  share: { fp32: "Its part of all fp32 time.", int8: "Its part of all int8 time, with conversion." },
  cumulative: "Its share and that of everything that takes longer.",
  added: "The harm it does: signal to noise when only its own quantization is at work. 25 dB or more is normal.",
  worst: "The harm they do: the lowest added SQNR among the ops of this type. 25 dB or more is normal.",
};

function gridColumns(by: Grouping, models: Model[], withError: boolean): GridColumn[] {
  const text = (id: string, label: string, width: number, help: string, heads = false): GridColumn => ({
    id,
    label,
    width,
    help,
    description: help,
    ...(heads ? { heads, pinned: true } : {}),
  });
  const number = (id: string, label: string, unit: string, width: number, help: string): GridColumn => ({
    id,
    label,
    unit,
    width,
    help,
    description: help,
    align: "right",
  });
  const first =
    by === "op"
      ? [text("name", "op", 236, HELP.op, true), text("type", "type", 152, HELP.type)]
      : [text("name", "type", 180, HELP.types, true), number("count", "ops", "count", 70, HELP.count)];
  const last =
    by === "op"
      ? number("added", "added SQNR", "dB", 108, HELP.added)
      : number("added", "worst added SQNR", "dB", 160, HELP.worst);
  const main = mainOf(models);
  const ofMain = `of ${main} time`;
  const median = by === "op" ? "median" : "of medians";
  const isPair = models.length > 1;
  const bars = isPair ? text("time", "fp32 and int8", 132, HELP.bars) : text("time", "time", 132, HELP.bar);
  return [
    ...first,
    { ...bars, unit: "bars" },
    ...(isPair
      ? [
          number("difference", "difference", "int8 − fp32", 126, HELP.difference),
          number("speedup", "speed-up", "ratio", 84, HELP.speedup),
        ]
      : []),
    ...models.map((model) => number(model, model, median, 88, HELP[model])),
    ...(models.includes("int8") ? [number("convert", "conversion", median, 96, HELP.convert)] : []),
    number("share", "share", ofMain, 92, HELP.share[main]),
    number("cumulative", "cumulative", ofMain, 98, HELP.cumulative),
    ...(withError ? [last] : []),
  ];
}

function cellOf(entry: Entry, column: string, models: Model[], longest: number): GridCell {
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

const ONE_SIDED: GridCell = { content: "–", class: "none", title: "it takes no time in one of the models" };

function differenceCell(entry: Entry): GridCell {
  if (Number.isNaN(entry.difference)) return ONE_SIDED;
  const text = differenceText(entry);
  const interval = intervalText(entry);
  const found = outcome(entry);
  return {
    content: found === "inside the noise" ? found : text,
    class: found === "inside the noise" ? "none" : found === "slower" ? "pf-slower" : "",
    title: `${text}${interval && `, ${interval}, 95 % interval for all ops together`}`,
  };
}

function speedupCell(entry: Entry): GridCell {
  if (!Number.isFinite(entry.speedup)) return ONE_SIDED;
  const found = outcome(entry);
  return {
    content: `${entry.speedup.toFixed(2)} ×`,
    class: found === "inside the noise" ? "none" : found === "slower" ? "pf-slower" : "",
    title: found === "slower" ? "slower in int8" : found,
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
