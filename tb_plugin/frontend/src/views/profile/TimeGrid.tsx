// Time of each op or type: the numbers, and two bars beside each other.

import { useEffect, useMemo, useState } from "preact/hooks";
import { Grid, type GridCell, type GridColumn } from "../../components/Grid.tsx";
import { formatNumber, formatTime } from "../../format.ts";
import { matcher, nextSort, sorted } from "../../order.ts";
import { type Entry, entryColumns, type Grouping, OUTSIDE, timeOf } from "../../profile.ts";
import type { NumberColumn } from "../../records.ts";
import { colourOf, scaleOf } from "../../scale.ts";
import * as state from "../../state.ts";
import { filter, sort } from "./controls.ts";

const BY_LOW = new Set(["name", "type", "speedup", "added"]);

interface Props {
  found: Entry[];
  by: Grouping;
  /** The column of the op table that the last column comes from, if the run has it. */
  error: NumberColumn | null;
  onOpen: (op: string) => void;
}

export function TimeGrid({ found, by, error, onOpen }: Props) {
  const columns = useMemo(() => entryColumns(found), [found]);
  const longest = useMemo(
    () => found.reduce((most, entry) => Math.max(most, entry.fp32 || 0, timeOf(entry)), 0),
    [found],
  );
  const scale = useMemo(() => (error ? scaleOf(error) : null), [error]);
  const rows = useMemo(() => {
    const matches = matcher({ text: filter.value, regex: false });
    const passing = found.flatMap(({ name, type }, row) =>
      typeof matches === "string" || matches(`${name || OUTSIDE} ${type}`) ? [row] : [],
    );
    return sorted(Uint32Array.from(passing), sort.value, columns);
  }, [found, columns, filter.value, sort.value]);
  const active = found.findIndex(({ name }) => name !== "" && name === state.op.value);
  const [here, setHere] = useState(-1);
  useEffect(() => setHere(by === "op" ? active : -1), [active, by, found]);
  const open = (row: number) => by === "op" && found[row]!.name && onOpen(found[row]!.name);
  return (
    <Grid
      label={by === "op" ? "Time per op" : "Time per type"}
      columns={gridColumns(by, error !== null)}
      rows={rows}
      cell={(row, column) => {
        const entry = found[row]!;
        if (column !== "added") return cellOf(entry, column, longest);
        if (Number.isNaN(entry.addedDb)) return { content: "–", class: "none" };
        return {
          content: formatNumber(entry.addedDb, "dB"),
          background: scale ? colourOf(scale.level(entry.addedDb)) : "",
        };
      }}
      sort={sort.value}
      onSort={(column, add) => {
        sort.value = nextSort(sort.value, column, BY_LOW.has(column), add);
      }}
      active={here}
      onActive={(row) => {
        setHere(row);
        if (state.op.value) open(row);
      }}
      onOpen={open}
      empty={<p>Nothing passes the filter. Clear the search box.</p>}
    />
  );
}

const HELP = {
  op: "Name of the op; a click opens it.",
  type: "Type of op.",
  types: "Type of op; times are sums over its ops.",
  count: "How many ops have this type.",
  time: "Above the time in fp32, below that in int8; the hatched part is conversion. All bars share one scale.",
  fp32: "Time in the fp32 model; the 95th percentile is in the cell's tooltip.",
  int8: "Time in the quantized model without conversion; the 95th percentile is in the cell's tooltip.",
  convert: "Quantizing, dequantizing and reordering around it.",
  speedup: "fp32 over int8 with conversion; below 1 it got slower. Inside the noise: the two cannot be told apart.",
  share: "Its part of all int8 time, with conversion.",
  cumulative: "Its share and that of everything that takes longer.",
  added: "The harm it does: signal to noise when only its own quantization is at work. 25 dB or more is normal.",
  worst: "The harm they do: the lowest added SQNR among the ops of this type. 25 dB or more is normal.",
};

function gridColumns(by: Grouping, withError: boolean): GridColumn[] {
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
      ? [text("name", "op", 260, HELP.op, true), text("type", "type", 120, HELP.type)]
      : [text("name", "type", 180, HELP.types, true), number("count", "ops", "count", 70, HELP.count)];
  const last =
    by === "op"
      ? number("added", "added SQNR", "dB", 116, HELP.added)
      : number("added", "worst added SQNR", "dB", 160, HELP.worst);
  const median = by === "op" ? "median" : "sum of medians";
  return [
    ...first,
    { ...text("time", "fp32 and int8", 210, HELP.time), unit: "bars" },
    number("fp32", "fp32", median, 112, HELP.fp32),
    number("int8", "int8", median, 112, HELP.int8),
    number("convert", "conversion", median, 112, HELP.convert),
    number("speedup", "speed-up", "ratio", 128, HELP.speedup),
    number("share", "share", "of int8 time", 96, HELP.share),
    number("cumulative", "cumulative", "of int8 time", 110, HELP.cumulative),
    ...(withError ? [last] : []),
  ];
}

function cellOf(entry: Entry, column: string, longest: number): GridCell {
  switch (column) {
    case "name":
      return entry.name
        ? { content: entry.name, title: entry.name }
        : {
            content: <em>{OUTSIDE}</em>,
            title: "What no op accounts for: the runtime itself, copies, waiting for threads",
          };
    case "type":
      return { content: entry.type };
    case "count":
      return entry.name ? { content: formatNumber(entry.count, "count") } : { content: "–", class: "none" };
    case "time":
      return { content: <Bars entry={entry} longest={longest} />, title: timesOf(entry) };
    case "fp32":
      return timeCell(entry.fp32, entry.fp32P95);
    case "int8":
      return timeCell(entry.int8, entry.int8P95);
    case "convert":
      return entry.convert
        ? { content: formatTime(entry.convert), title: `${entry.convert} µs` }
        : { content: "–", class: "none", title: "none" };
    case "speedup":
      return speedupCell(entry);
    default:
      return { content: percent(entry[column as "share" | "cumulative"]) };
  }
}

function timeCell(median: number, p95: number): GridCell {
  if (Number.isNaN(median)) return { content: "–", class: "none", title: "not in this model" };
  return {
    content: formatTime(median),
    title: `median ${formatTime(median)}${Number.isNaN(p95) ? "" : `, p95 ${formatTime(p95)}`}`,
  };
}

function speedupCell({ speedup, differs }: Entry): GridCell {
  if (!Number.isFinite(speedup)) return { content: "–", class: "none", title: "not in both models" };
  const text = `${speedup.toFixed(2)} ×`;
  if (differs === false)
    return { content: "inside the noise", class: "none", title: `${text}, but the two times cannot be told apart` };
  return {
    content: text,
    class: speedup < 1 ? "pf-slower" : "",
    title: speedup < 1 ? `${text}: slower in int8` : text,
  };
}

function Bars({ entry, longest }: { entry: Entry; longest: number }) {
  const width = (time: number) => ({ width: `${longest > 0 ? (100 * (time || 0)) / longest : 0}%` });
  return (
    <span class="pf-bars" aria-hidden="true">
      <span>
        <span class="pf-bar fp32" style={width(entry.fp32)} />
      </span>
      <span>
        <span class="pf-bar int8" style={width(entry.int8)} />
        <span class="pf-bar convert" style={width(entry.convert)} />
      </span>
    </span>
  );
}

/** Two digits always, so that they stand below each other. */
function percent(share: number): string {
  return Number.isNaN(share) ? "–" : `${(100 * share).toFixed(2)} %`;
}

function timesOf({ fp32, int8, convert }: Entry): string {
  return `fp32 ${formatTime(fp32)}, int8 ${formatTime(int8)}${convert ? ` + ${formatTime(convert)} conversion` : ""}`;
}
