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
  const compares = keys
    .map(({ column, descending }) => ({ ranks: ranksOf(columns.get(column)), sign: descending ? -1 : 1 }))
    .filter((key): key is { ranks: Float64Array; sign: 1 | -1 } => key.ranks !== null);
  if (!compares.length) return rows;
  return rows.slice().sort((a, b) => {
    for (const { ranks, sign } of compares) {
      const x = ranks[a]!;
      const y = ranks[b]!;
      if (x === y) continue;
      const noX = Number.isNaN(x);
      const noY = Number.isNaN(y);
      if (noX && noY) continue;
      if (noX || noY) return noX ? 1 : -1;
      return x < y ? -sign : sign;
    }
    return a - b;
  });
}

function ranksOf(column: Column | undefined): Float64Array | null {
  if (!column) return null;
  if (column.kind === "number") return Float64Array.from(column.values);
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
