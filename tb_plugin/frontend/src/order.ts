// Which rows of a table are shown, and in which order. Pure functions of columns; 20,000 rows in a few milliseconds.

import type { Column } from "./records.ts";
import type { Filter, SortKey } from "./state.ts";

export const VERDICTS = ["bad", "watch", "ok", ""];

export function matcher({ text, regex }: { text: string; regex: boolean }): ((name: string) => boolean) | string {
  if (!text) return () => true;
  if (!regex) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return (name) => words.every((word) => name.toLowerCase().includes(word));
  }
  try {
    const pattern = new RegExp(text, "i");
    return (name) => pattern.test(name);
  } catch (error) {
    return (error as Error).message;
  }
}

/** Rows that pass the filter, in table order; a text filter looks at names and types. */
export function filtered(rows: number, filter: Filter, columns: ReadonlyMap<string, Column>): Uint32Array {
  const tests: ((row: number) => boolean)[] = [];
  const matches = matcher(filter);
  if (typeof matches !== "string" && filter.text) {
    const found = ["name", "type"].map((name) => columns.get(name)).filter((c) => c !== undefined);
    const passing = found.map((c) => (c.kind === "text" ? { codes: c.codes, pass: c.texts.map(matches) } : null));
    tests.push((row) => passing.some((p) => p?.pass[p.codes[row]!]));
  }
  for (const [name, allowed] of [
    ["type", filter.types],
    ["verdict", filter.verdicts],
  ] as const) {
    const column = columns.get(name);
    if (!allowed.length || column?.kind !== "text") continue;
    const pass = column.texts.map((text) => allowed.includes(text));
    tests.push((row) => pass[column.codes[row]!]!);
  }
  const found = new Uint32Array(rows);
  let count = 0;
  for (let row = 0; row < rows; row++) if (tests.every((test) => test(row))) found[count++] = row;
  return found.subarray(0, count);
}

/** Sorted by several keys; rows without a value come last either way, equal rows keep their order. */
export function sorted(rows: Uint32Array, keys: SortKey[], columns: ReadonlyMap<string, Column>): Uint32Array {
  const known = keys.flatMap(({ column, descending }) => {
    const found = columns.get(column);
    return found ? [{ ...ranksOf(found), descending }] : [];
  });
  if (!known.length) return rows;
  const most = rows.reduce((most, row) => Math.max(most, row), 0) + 1;
  const room = known.reduce((product, { count }) => product * (count + 1), most);
  if (room > Number.MAX_SAFE_INTEGER) return rows.slice().sort((a, b) => compared(known, a, b));
  // All keys and the row as one number: those are sorted without a call for each pair.
  const places = Float64Array.from(rows, (row) =>
    known.reduce((at, key) => at * (key.count + 1) + placeOf(key, row), 0),
  );
  for (let i = 0; i < rows.length; i++) places[i] = places[i]! * most + rows[i]!;
  places.sort();
  return Uint32Array.from(places, (place) => place % most);
}

interface Ranks {
  /** Of each row, the same where values are the same; -1 where there is none. */
  ranks: Int32Array;
  /** How many ranks there are. */
  count: number;
}

type Ranked = Ranks & { descending: boolean };

function placeOf({ ranks, count, descending }: Ranked, row: number): number {
  const rank = ranks[row]!;
  return rank < 0 ? count : descending ? count - 1 - rank : rank;
}

function compared(keys: Ranked[], a: number, b: number): number {
  for (const key of keys) {
    const difference = placeOf(key, a) - placeOf(key, b);
    if (difference) return difference;
  }
  return a - b;
}

const known = new WeakMap<Column, Ranks>();

/** Of a column once, however often it is sorted by. */
function ranksOf(column: Column): Ranks {
  let found = known.get(column);
  if (!found) {
    found = rankedBy(valuesOf(column));
    known.set(column, found);
  }
  return found;
}

function rankedBy(values: ArrayLike<number>): Ranks {
  const steps = Float64Array.from(values)
    .filter((value) => !Number.isNaN(value))
    .sort()
    .filter((value, i, all) => !i || value !== all[i - 1]);
  const ranks = Int32Array.from(values, (value) => {
    if (Number.isNaN(value)) return -1;
    let low = 0;
    for (let high = steps.length - 1; low < high; ) {
      const middle = (low + high) >> 1;
      if (steps[middle]! < value) low = middle + 1;
      else high = middle;
    }
    return low;
  });
  return { ranks, count: steps.length };
}

function valuesOf(column: Column): ArrayLike<number> {
  if (column.kind === "number") return column.values;
  const ranks = column.texts.map((text, code) => {
    if (text === "") return Number.NaN;
    return column.spec.name === "verdict" ? VERDICTS.indexOf(text) : code;
  });
  return Float64Array.from(column.codes, (code) => ranks[code]!);
}

/** A click on a header: worst first, then the other way round, then unsorted; with Shift beside the other keys. */
export function nextSort(keys: SortKey[], column: string, worstIsLow: boolean, add: boolean): SortKey[] {
  const first = { column, descending: !worstIsLow };
  const present = keys.find((key) => key.column === column);
  const others = keys.filter((key) => key.column !== column);
  if (!present) return add ? [...keys, first] : [first];
  const turned = present.descending === first.descending ? { column, descending: !first.descending } : null;
  if (!add) return turned && !others.length ? [turned] : turned ? [first] : [];
  return turned ? keys.map((key) => (key === present ? turned : key)) : others;
}
