// The error of the quantized model along its graph, and where it jumps.

import { type Column, numberAt } from "./records.ts";

export interface Jump {
  row: number;
  arrived: number;
  total: number;
}

export const JUMP_DB = 6;

/** Ops that leave the signal much worse than they got it, the largest jump first. */
export function jumps(columns: ReadonlyMap<string, Column>, rows: number, most = 3): Jump[] {
  const arrived = columns.get("arrived_sqnr_db");
  const total = columns.get("total_sqnr_db");
  const found: Jump[] = [];
  for (let row = 0; row < rows; row++) {
    const jump = { row, arrived: numberAt(arrived, row), total: numberAt(total, row) };
    if (jump.arrived - jump.total > JUMP_DB && jump.total < 25) found.push(jump);
  }
  return found.sort((a, b) => b.arrived - b.total - (a.arrived - a.total)).slice(0, most);
}

export interface Bucket {
  low: number;
  high: number;
  /** The row with the lowest value. */
  row: number;
}

/** At most `most` buckets of neighbouring rows with the range of their values; null where there is none. */
export function buckets(column: Column | undefined, rows: number, most: number): (Bucket | null)[] {
  const count = Math.min(rows, most);
  return Array.from({ length: count }, (_, i) => {
    const found: Bucket = { low: Number.POSITIVE_INFINITY, high: Number.NEGATIVE_INFINITY, row: -1 };
    for (let row = Math.floor((i * rows) / count); row < Math.floor(((i + 1) * rows) / count); row++) {
      const value = numberAt(column, row);
      if (value < found.low) Object.assign(found, { low: value, row });
      if (value > found.high) found.high = value;
    }
    return found.row < 0 ? null : found;
  });
}
