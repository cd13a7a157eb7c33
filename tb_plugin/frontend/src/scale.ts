// How bad a value is, by its column's direction and normal range. The one place that decides colors of numbers.

import type { ColumnSpec, NumberColumn } from "./records.ts";

export interface Scale {
  /** 0 is normal or best, 1 the worst of the column; NaN has no color. */
  level(value: number): number;
  /** The value at level 0 and at level 1. */
  ends: [number, number];
  /** Whether level 0 is the column's normal range, or merely its best value. */
  normal: boolean;
}

const SAMPLES = 4096;

/** null for columns that are neither good nor bad. */
export function scaleOf(column: NumberColumn): Scale | null {
  return makeScale(column.spec, sampled(column.values));
}

export function makeScale(spec: ColumnSpec, known: number[]): Scale | null {
  if (!spec.better || !known.length) return null;
  const sign = spec.better === "higher" ? -1 : 1;
  const limit = spec.normal?.[spec.better === "higher" ? 0 : 1] ?? null;
  const sorted = known.toSorted((a, b) => a - b);
  const at = (share: number) => sorted[Math.round(share * (sorted.length - 1))]!;
  const best = limit ?? (sign < 0 ? at(0.95) : at(0.05));
  const usual = sign < 0 ? at(0.01) : at(0.99);
  // One bad op among hundreds of good ones is an end of the scale, too.
  const worst = sign * (usual - best) > 0 ? usual : sign < 0 ? at(0) : at(1);
  const outside = sign * (worst - best);
  const isLog = sign > 0 && best > 0 && worst / best > 100;
  const place = isLog ? Math.log : (value: number) => value;
  const span = sign * (place(worst) - place(best));
  return {
    ends: [best, outside > 0 ? worst : best],
    normal: limit !== null,
    level: (value) => {
      if (Number.isNaN(value)) return Number.NaN;
      const beyond = sign * (value - best);
      if (beyond <= 0) return 0;
      return span > 0 ? Math.min(1, (sign * (place(value) - place(best))) / span) : 1;
    },
  };
}

/** Enough of the values for quantiles, and both ends of them all: one bad op in 20,000 counts. */
export function sampled(values: ArrayLike<number>): number[] {
  const every = Math.max(1, Math.floor(values.length / SAMPLES));
  const found: number[] = [];
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
    if (i % every === 0) found.push(value);
  }
  return low > high ? found : [low, ...found, high];
}

/** A CSS color that works in light and dark: nothing at 0, then from amber to red. */
export function colorOf(level: number): string {
  if (!(level > 0)) return "transparent";
  const hue = Math.round(48 - 44 * level);
  return `hsl(${hue} 90% 50% / ${(0.18 + 0.4 * level).toFixed(3)})`;
}

/** Of a difference: -1 is much worse (red), 0 the same, 1 much better (blue); apart also for the color-blind. */
export function differenceColor(level: number): string {
  const size = Math.min(1, Math.abs(level));
  if (!(size > 0.01)) return "transparent";
  return `hsl(${level < 0 ? "8 90%" : "212 85%"} 52% / ${(0.1 + 0.45 * size).toFixed(3)})`;
}
