// Time per op and per type, and what the whole model takes. Pure functions of the stored rows.

import { formatInterval, formatTime, listed, signed } from "./format.ts";
import { type Column, type Meta, numberColumn, type ProfileRow, type Span, textColumn } from "./records.ts";

/** Name of the time that no op accounts for. */
export const OUTSIDE = "outside of all ops";

export type Model = Span[0];

export interface Entry {
  /** Name of the op or of the type; "" is what no op accounts for. */
  name: string;
  type: string;
  /** How many ops it stands for. */
  count: number;
  /** Other ops that run as part of it. */
  fused: string[];
  /** Times in µs; NaN where the op is not in that model. */
  fp32: number;
  int8: number;
  convert: number;
  fp32P95: number;
  int8P95: number;
  /** What shares are of: the time in int8 with conversion, or that in fp32 where nothing else was measured. */
  time: number;
  /** fp32 over int8 with conversion. */
  speedup: number;
  /** int8 with conversion minus fp32, and the interval that holds it. */
  difference: number;
  low: number;
  high: number;
  /** Whether the two times can be told apart; null if nobody asked. */
  differs: boolean | null;
  share: number;
  /** Share of this one and of all that take longer. */
  cumulative: number;
  /** Signal to noise that it adds in dB, the worst of a type's; NaN if unknown. */
  addedDb: number;
}

export type Grouping = "op" | "type";

/** The models that have times: one or both. */
export function modelsOf(rows: ProfileRow[]): Model[] {
  const has: Record<Model, (row: ProfileRow) => boolean> = {
    fp32: ({ fp32_us: fp32 }) => typeof fp32 === "number",
    int8: ({ int8_us: int8, convert_us: convert }) => typeof int8 === "number" || Boolean(convert),
  };
  return (["fp32", "int8"] as const).filter((model) => rows.some(has[model]));
}

/** The model that shares are of. */
export function mainOf(models: Model[]): Model {
  return models.at(-1) ?? "int8";
}

/** By op they are in the order of the rows. */
export function entries(rows: ProfileRow[], by: Grouping, addedOf: (op: string) => number = () => Number.NaN): Entry[] {
  const found = by === "op" ? rows.map((row) => entryOf(row, [row], addedOf)) : perType(rows, addedOf);
  const main = mainOf(modelsOf(rows));
  for (const entry of found) entry.time = timeIn(main, entry) || 0;
  const total = found.reduce((sum, { time }) => sum + time, 0);
  if (total === 0) return found;
  let upToHere = 0;
  for (const entry of found.toSorted((a, b) => b.time - a.time)) {
    upToHere += entry.time;
    entry.share = entry.time / total;
    entry.cumulative = upToHere / total;
  }
  return found;
}

/** With conversion; NaN where there is neither. */
function timeIn(model: Model, { fp32, int8, convert }: Pick<Entry, "fp32" | "int8" | "convert">): number {
  return model === "fp32" ? fp32 : sum([int8, convert || Number.NaN]);
}

/** `row` stands for all rows of the group. */
function entryOf(row: ProfileRow, group: ProfileRow[], addedOf: (op: string) => number): Entry {
  const ops = group.flatMap(({ op }) => op || []);
  const times = { fp32: row.fp32_us ?? Number.NaN, int8: row.int8_us ?? Number.NaN, convert: row.convert_us ?? 0 };
  const [fp32, int8] = [timeIn("fp32", times), timeIn("int8", times)];
  return {
    name: row.op,
    type: row.type ?? "",
    count: ops.length,
    fused: row.ops ?? [],
    ...times,
    fp32P95: row.fp32_p95_us ?? Number.NaN,
    int8P95: row.int8_p95_us ?? Number.NaN,
    time: Number.NaN,
    speedup: int8 > 0 ? fp32 / int8 : Number.NaN,
    difference: row.difference_us ?? int8 - fp32,
    low: row.low_us ?? Number.NaN,
    high: row.high_us ?? Number.NaN,
    differs: row.differs ?? null,
    share: Number.NaN,
    cumulative: Number.NaN,
    addedDb: least(ops.map(addedOf)),
  };
}

/** Sums over the ops of a type. Percentiles and noise of sums cannot be told from those of the parts. */
function perType(rows: ProfileRow[], addedOf: (op: string) => number): Entry[] {
  const groups = Map.groupBy(rows, ({ op, type }) => (op ? type || "unknown type" : ""));
  return Array.from(groups, ([type, group]) => {
    const sums = {
      fp32_us: sum(group.map(({ fp32_us: us }) => us ?? Number.NaN)),
      int8_us: sum(group.map(({ int8_us: us }) => us ?? Number.NaN)),
      convert_us: sum(group.map(({ convert_us: us }) => us ?? 0)),
    };
    return entryOf({ op: type, type, ...sums }, group, addedOf);
  });
}

/** NaN only where all are. */
function sum(values: number[]): number {
  const known = values.filter((value) => !Number.isNaN(value));
  return known.length ? known.reduce((total, value) => total + value, 0) : Number.NaN;
}

function least(values: number[]): number {
  const known = values.filter((value) => !Number.isNaN(value));
  return known.length ? known.reduce((a, b) => Math.min(a, b)) : Number.NaN;
}

/** The row with the time of an op: its own, or that of the op which it is fused into; -1 if there is none. */
export function rowWith(rows: ProfileRow[], op: string): number {
  if (!op) return -1;
  const own = rows.findIndex((row) => row.op === op);
  return own >= 0 ? own : rows.findIndex(({ ops }) => ops?.includes(op));
}

export function fusedText(fused: string[]): string {
  return fused.length ? `runs as one with ${listed(fused, 8)}` : "";
}

type Compared = Pick<Entry, "difference" | "low" | "high" | "differs">;

export type Outcome = "faster" | "slower" | "noise" | "same";

/** What int8 does to the time; the same if nothing or not known. */
export function outcome({ difference, differs }: Compared): Outcome {
  if (differs === false) return "noise";
  return difference > 0 ? "slower" : difference < 0 ? "faster" : "same";
}

export const OUTCOME_WORDS: Record<Outcome, string> = {
  faster: "faster",
  slower: "slower",
  noise: "inside the noise",
  same: "",
};

export function differenceText({ difference }: Compared): string {
  return signed(difference, formatTime);
}

/** "" where no interval is known. */
export function intervalText({ low, high }: Compared): string {
  return Number.isNaN(low + high) ? "" : formatInterval(low, high);
}

/** What one of the models takes as a whole. */
export interface Whole {
  model: Model;
  /** Median latency, or the sum over all rows where that was not measured. */
  time: number;
  isMeasured: boolean;
  p95: number;
  /** Samples in a second; NaN unless the latency was measured. */
  perSecond: number;
  /** Over all rows. */
  sum: number;
  /** What no op accounts for. */
  rest: number;
  /** By which share the profiler slows it down. */
  overhead: number;
}

export interface Totals {
  wholes: Whole[];
  /** Of both latencies, which are not the sums of the ops where those overlap. */
  speedup: number;
  compared: Compared;
  convert: number;
  /** Of all int8 time. */
  convertShare: number;
}

export function totals(rows: ProfileRow[], meta: Meta): Totals {
  const noError = () => Number.NaN;
  const all = rows.map((row) => entryOf(row, [row], noError));
  const wholes = modelsOf(rows).map((model): Whole => {
    const measured = meta[`${model}_total_us`];
    const inAll = sum(all.map((entry) => timeIn(model, entry)));
    const rest = all.find(({ name }) => name === "");
    return {
      model,
      time: measured ?? inAll,
      isMeasured: measured !== undefined,
      p95: meta.total?.[`${model}_p95_us`] ?? Number.NaN,
      perSecond: ((meta.samples ?? Number.NaN) / (measured ?? Number.NaN)) * 1e6,
      sum: inAll,
      rest: rest ? timeIn(model, rest) : Number.NaN,
      overhead: meta.overhead?.[model] ?? Number.NaN,
    };
  });
  const timeOf = (model: Model) => wholes.find((whole) => whole.model === model)?.time ?? Number.NaN;
  const times = { fp32_us: timeOf("fp32"), int8_us: timeOf("int8"), convert_us: 0 };
  const both = entryOf({ op: "", ...meta.total, ...times }, [], noError);
  const convert = sum(all.map((entry) => entry.convert));
  const { speedup } = both;
  return { wholes, speedup, compared: both, convert, convertShare: convert / sum(all.map((e) => timeIn("int8", e))) };
}

/** Entries as columns, so that they are sorted as the op table is. */
export function entryColumns(found: Entry[]): Map<string, Column> {
  const number = (name: string, value: (entry: Entry) => number): [string, Column] => [
    name,
    numberColumn({ name }, found.map(value)),
  ];
  const text = (name: string, value: (entry: Entry) => string): [string, Column] => [
    name,
    textColumn({ name }, found.map(value)),
  ];
  return new Map([
    text("name", ({ name }) => name),
    text("type", ({ type }) => type),
    number("count", ({ count }) => count),
    number("fp32", ({ fp32 }) => fp32),
    number("int8", ({ int8 }) => int8),
    number("convert", ({ convert }) => convert),
    number("time", ({ time }) => time),
    number("difference", ({ difference }) => difference),
    number("speedup", ({ speedup }) => speedup),
    number("share", ({ share }) => share),
    number("cumulative", ({ cumulative }) => cumulative),
    number("added", ({ addedDb }) => addedDb),
  ]);
}
