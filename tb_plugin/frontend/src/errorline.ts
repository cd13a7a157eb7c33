// The error of the quantized model along its graph, and where it jumps.

import { sorted } from "./order.ts";
import { type Column, numberAt, whyNull } from "./records.ts";
import { EFFECT, heads, isBad, worstFirst } from "./worst.ts";

export interface Jump {
  row: number;
  /** Infinity where no error arrives, NaN where nobody knows what does. */
  arrived: number;
  total: number;
}

const JUMP_DB = 6;
/** A jump that ends above is nobody's problem. */
export const NORMAL_DB = 25;
/** As inc_tb/measure says it. */
export const NO_ERROR_ARRIVED = "what reaches this op has no error";
export const NO_ERROR = "no error at all: both are equal";
const CLEAN_DB = 100;

/** Ops that leave the signal much worse than they got it, or that nothing compared comes before; the worst first. */
export function jumps(columns: ReadonlyMap<string, Column>, rows: number, most = 3): Jump[] {
  const arrived = columns.get("arrived_sqnr_db");
  const total = columns.get("total_sqnr_db");
  const added = columns.get("added_sqnr_db");
  const found: (Jump & { size: number })[] = [];
  for (let row = 0; row < rows; row++) {
    const jump = { row, arrived: orClean(arrived, row, NO_ERROR_ARRIVED), total: numberAt(total, row) };
    const own = orClean(added, row, NO_ERROR);
    // Where inputs of very different size arrive, as in a hard-swish, the small and bad one is hidden behind the others
    // until it is multiplied: such an op adds nothing itself.
    if (!(jump.total < NORMAL_DB) || own >= NORMAL_DB) continue;
    const before = Number.isNaN(jump.arrived) && Number.isNaN(own) ? NORMAL_DB : jump.arrived;
    const size = (Number.isNaN(before) ? CLEAN_DB : Math.min(before, CLEAN_DB)) - jump.total;
    if (Number.isNaN(jump.arrived) || size >= JUMP_DB) found.push({ ...jump, size });
  }
  return found
    .sort((a, b) => b.size - a.size)
    .slice(0, most)
    .map(({ size: _, ...jump }) => jump);
}

/** Ops that do most to the output as a probe has measured it, the worst first; none where all of them are normal. */
export function effects(columns: ReadonlyMap<string, Column>, rows: number, most = 3): number[] {
  const effect = columns.get(EFFECT);
  const bad = Uint32Array.from(Array(rows).keys()).filter((row) => isBad(effect, row));
  return heads(sorted(bad, worstFirst(EFFECT), columns), effect, most);
}

/** Without any error the signal to noise has no number; a culprit may well be the first op that is quantized. */
function orClean(column: Column | undefined, row: number, reason: string): number {
  const value = numberAt(column, row);
  const isClean = Number.isNaN(value) && column !== undefined && whyNull(column, row) === reason;
  return isClean ? Number.POSITIVE_INFINITY : value;
}

export interface Lowest {
  row: number;
  value: number;
}

/** The op with the lowest value, if any has one. */
export function lowest(column: Column | undefined, rows: number): Lowest | null {
  let found: Lowest | null = null;
  for (let row = 0; row < rows; row++) {
    const value = numberAt(column, row);
    if (value < (found?.value ?? Number.POSITIVE_INFINITY)) found = { row, value };
  }
  return found;
}

interface Bucket {
  low: number;
  high: number;
  /** The row with the lowest value. */
  row: number;
}

/** At most `most` buckets of neighboring rows with the range of their values; null where there is none. */
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
