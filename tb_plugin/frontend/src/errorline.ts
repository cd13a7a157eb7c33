// The error of the quantized model along its graph, and where it jumps.

import { type Column, numberAt, whyNull } from "./records.ts";

interface Jump {
  row: number;
  arrived: number;
  total: number;
}

export const JUMP_DB = 6;
/** A jump that ends above is nobody's problem. */
export const NORMAL_DB = 25;
/** As inc_tb/measure/metrics.py says it. */
export const NO_ERROR_ARRIVED = "what reaches this op has no error";

/** Ops that leave the signal much worse than they got it, the largest jump first. */
export function jumps(columns: ReadonlyMap<string, Column>, rows: number, most = 3): Jump[] {
  const arrived = columns.get("arrived_sqnr_db");
  const total = columns.get("total_sqnr_db");
  const added = columns.get("added_sqnr_db");
  const found: Jump[] = [];
  for (let row = 0; row < rows; row++) {
    const jump = { row, arrived: arrivedAt(arrived, row), total: numberAt(total, row) };
    // Where inputs of very different size arrive, as in a hard-swish, the small and bad one is hidden behind the others
    // until it is multiplied: such an op adds nothing itself.
    const isItsOwn = numberAt(added, row) < NORMAL_DB;
    if (isItsOwn && jump.arrived - jump.total > JUMP_DB && jump.total < NORMAL_DB) found.push(jump);
  }
  const size = ({ arrived, total }: Jump) => Math.min(arrived, 100) - total;
  return found.sort((a, b) => size(b) - size(a)).slice(0, most);
}

/** Without any error the signal to noise has no number; a culprit may well be the first op that is quantized. */
function arrivedAt(column: Column | undefined, row: number): number {
  const value = numberAt(column, row);
  const isClean = Number.isNaN(value) && column !== undefined && whyNull(column, row) === NO_ERROR_ARRIVED;
  return isClean ? Number.POSITIVE_INFINITY : value;
}

interface Bucket {
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
