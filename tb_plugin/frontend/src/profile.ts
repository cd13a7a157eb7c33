// Time per op and per type, and the spans of the timeline. Pure functions of the stored rows.

import { type Column, numberColumn, type ProfileRow, textColumn } from "./records.ts";

/** Name of the time that no op accounts for. */
export const OUTSIDE = "outside of all ops";

export interface Entry {
  /** Name of the op or of the type; "" is what no op accounts for. */
  name: string;
  type: string;
  /** How many ops it stands for. */
  count: number;
  /** Times in µs; NaN where the op is not in that model. */
  fp32: number;
  int8: number;
  convert: number;
  fp32P95: number;
  int8P95: number;
  /** fp32 over int8 with conversion. */
  speedup: number;
  /** Of all int8 time, with conversion. */
  share: number;
  /** Share of this one and of all that take longer. */
  cumulative: number;
  /** Whether the two times can be told apart; null if nobody asked. */
  differs: boolean | null;
  /** Signal to noise that it adds in dB, the worst of a type's; NaN if unknown. */
  addedDb: number;
}

export type Grouping = "op" | "type";

export function entries(rows: ProfileRow[], by: Grouping, addedOf: (op: string) => number = () => Number.NaN): Entry[] {
  const ops = rows.map((row) => entryOf(row, addedOf));
  const found = by === "op" ? ops : summed(ops);
  const total = found.reduce((sum, entry) => sum + timeOf(entry), 0);
  let upToHere = 0;
  for (const entry of [...found].sort((a, b) => timeOf(b) - timeOf(a))) {
    upToHere += timeOf(entry);
    entry.share = total > 0 ? timeOf(entry) / total : Number.NaN;
    entry.cumulative = total > 0 ? upToHere / total : Number.NaN;
    entry.speedup = entry.fp32 / (entry.int8 + entry.convert);
  }
  return found;
}

/** What an entry takes in the quantized model. */
export function timeOf({ int8, convert }: Pick<Entry, "int8" | "convert">): number {
  return (Number.isNaN(int8) ? 0 : int8) + convert;
}

function entryOf(row: ProfileRow, addedOf: (op: string) => number): Entry {
  return {
    name: row.op,
    type: row.type ?? "",
    count: row.op ? 1 : 0,
    fp32: row.fp32_us ?? Number.NaN,
    int8: row.int8_us ?? Number.NaN,
    convert: row.convert_us ?? 0,
    fp32P95: row.fp32_p95_us ?? Number.NaN,
    int8P95: row.int8_p95_us ?? Number.NaN,
    speedup: Number.NaN,
    share: Number.NaN,
    cumulative: Number.NaN,
    differs: row.differs ?? null,
    addedDb: row.op ? addedOf(row.op) : Number.NaN,
  };
}

/** Sums over the ops of a type. Percentiles and noise of sums cannot be told from those of the parts. */
function summed(ops: Entry[]): Entry[] {
  const groups = Map.groupBy(ops, ({ name, type }) => (name ? type || "unknown type" : ""));
  return Array.from(groups, ([type, group]) => ({
    ...group[0]!,
    name: type,
    type,
    count: group.reduce((sum, { count }) => sum + count, 0),
    fp32: added(group.map(({ fp32 }) => fp32)),
    int8: added(group.map(({ int8 }) => int8)),
    convert: added(group.map(({ convert }) => convert)),
    fp32P95: Number.NaN,
    int8P95: Number.NaN,
    differs: null,
    addedDb: least(group.map(({ addedDb }) => addedDb)),
  }));
}

/** NaN only where all are. */
function added(values: number[]): number {
  const known = values.filter((value) => !Number.isNaN(value));
  return known.length ? known.reduce((sum, value) => sum + value, 0) : Number.NaN;
}

function least(values: number[]): number {
  const known = values.filter((value) => !Number.isNaN(value));
  return known.length ? known.reduce((a, b) => Math.min(a, b)) : Number.NaN;
}

export interface Totals {
  fp32: number;
  int8: number;
  /** Of the measured latency, which is not the sum of the ops where they overlap. */
  speedup: number;
  convert: number;
  convertShare: number;
  /** Sums over all rows. */
  fp32Sum: number;
  int8Sum: number;
  /** What no op accounts for, in both. */
  restFp32: number;
  restInt8: number;
}

export function totals(rows: ProfileRow[], measured: { fp32_total_us?: number; int8_total_us?: number }): Totals {
  const all = rows.map((row) => entryOf(row, () => Number.NaN));
  const fp32Sum = added(all.map(({ fp32 }) => fp32));
  const int8Sum = added(all.map(timeOf));
  const convert = added(all.map(({ convert: one }) => one));
  const rest = all.find(({ name }) => name === "");
  const fp32 = measured.fp32_total_us ?? fp32Sum;
  const int8 = measured.int8_total_us ?? int8Sum;
  return {
    fp32,
    int8,
    speedup: fp32 / int8,
    convert,
    convertShare: convert / int8Sum,
    fp32Sum,
    int8Sum,
    restFp32: rest?.fp32 ?? Number.NaN,
    restInt8: rest ? timeOf(rest) : Number.NaN,
  };
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
    number("time", timeOf),
    number("speedup", ({ speedup }) => speedup),
    number("share", ({ share }) => share),
    number("cumulative", ({ cumulative }) => cumulative),
    number("added", ({ addedDb }) => addedDb),
  ]);
}
