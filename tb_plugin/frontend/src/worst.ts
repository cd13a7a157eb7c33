// Which ops are worst: the one order that the table, the graph, the line above the table and the overview share.

import type { SortKey } from "./link.ts";
import { type Column, numberAt } from "./records.ts";

/** What quantizing only this unit does to the model's output, as a probe has measured it. */
export const EFFECT = "sensitivity";
/** What an op adds to correct inputs, which is known without a probe. */
export const ADDED = "added_sqnr_db";

/** By the measured effect, and where it was not measured, or is the same, by what is added. */
export function worstFirst(by: string): SortKey[] {
  const added = { column: ADDED, descending: false };
  return by === EFFECT ? [{ column: EFFECT, descending: true }, added] : [added];
}

/** The first rows of an order that have a value; ops that change precision together have the same one, and count once. */
export function heads(order: ArrayLike<number>, by: Column | undefined, most: number): number[] {
  const found: number[] = [];
  let before = Number.NaN;
  for (let i = 0; i < order.length && found.length < most; i++) {
    const value = numberAt(by, order[i]!);
    if (Number.isNaN(value) || (by?.spec.name === EFFECT && value === before)) continue;
    before = value;
    found.push(order[i]!);
  }
  return found;
}

/** Whether a value is worse than what its column calls normal. */
export function isBad(column: Column | undefined, row: number): boolean {
  const value = numberAt(column, row);
  const [low = null, high = null] = column?.spec.normal ?? [];
  return (low !== null && value < low) || (high !== null && value > high);
}

export interface Group {
  /** Rows [from, to). */
  from: number;
  to: number;
  /** The worst of them; -1 where none has a value. */
  row: number;
  value: number;
}

/** Neighbors together where there are more rows than room: of each group the worst. */
export function worstInGroups(column: Column, rows: number, most: number): Group[] {
  const count = Math.min(rows, most);
  const sign = column.spec.better === "higher" ? -1 : 1;
  return Array.from({ length: count }, (_, i) => {
    const group = { from: Math.floor((i * rows) / count), to: Math.floor(((i + 1) * rows) / count) };
    const found: Group = { ...group, row: -1, value: Number.NaN };
    for (let row = group.from; row < group.to; row++) {
      const value = numberAt(column, row);
      if (Number.isNaN(value) || sign * value <= sign * found.value) continue;
      Object.assign(found, { row, value });
    }
    return found;
  });
}
