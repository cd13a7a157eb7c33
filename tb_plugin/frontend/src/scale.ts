// How bad a value is, by its column's direction and normal range. The one place that decides colors of numbers.

import type { ColumnSpec, NumberColumn } from "./records.ts";

export interface Scale {
  /** 0 is normal or best, 1 the worst; NaN has no color. */
  level(value: number): number;
  /** A CSS color, "transparent" where nothing is wrong. */
  color(value: number): string;
  /** The value at level 0 and at level 1. */
  ends: [number, number];
  /** Whether level 0 is the column's normal range, the same in every run, or merely the best value of this one. */
  normal: boolean;
  /** Whether the error may have been made elsewhere, so that its colors accuse nobody. */
  inherited: boolean;
}

const SAMPLES = 4096;
/** So many times what is normal is as bad as can be, where the unit itself has no end. */
const WORST_TIMES = 100;
/** Errors of what an op gives in the quantized model, where it works with what arrives from upstream. */
const INHERITED = /^(arrived|total)_sqnr_db$|^a_(inc_mse|n?mse|sqnr_db|cosine|max_abs|rmse_lsb|worst_channel_sqnr_db)$/;

/** null for columns that are neither good nor bad. */
export function scaleOf(column: NumberColumn): Scale | null {
  return makeScale(column.spec, sampled(column.values));
}

export function makeScale(spec: ColumnSpec, known: number[]): Scale | null {
  if (!spec.better || !known.length) return null;
  const fixed = fixedEnds(spec);
  const [best, worst] = fixed?.ends ?? seenEnds(spec.better === "higher", known);
  const sign = spec.better === "higher" ? -1 : 1;
  const place = fixed?.place ?? (sign > 0 && best > 0 && worst / best > 100 ? Math.log : (value: number) => value);
  const span = Math.abs(place(worst) - place(best));
  const level = (value: number) => {
    if (Number.isNaN(value)) return Number.NaN;
    if (sign * (value - best) <= 0) return 0;
    const at = Math.abs(place(value) - place(best)) / span;
    return span > 0 && !Number.isNaN(at) ? Math.min(1, at) : 1;
  };
  const inherited = INHERITED.test(spec.name);
  return {
    level,
    color: (value) => colorOf(level(value), inherited),
    ends: [best, worst],
    normal: fixed !== null,
    inherited,
  };
}

interface Fixed {
  ends: [number, number];
  place: (value: number) => number;
}

/** From where normal ends to where nothing can be worse; null where a column does not say what is normal. */
function fixedEnds({ better, normal, unit }: ColumnSpec): Fixed | null {
  const [low = null, high = null] = normal ?? [];
  if (better === "higher") {
    if (low === null) return null;
    // At 0 dB there is as much noise as signal.
    if (unit === "dB") return { ends: [low, Math.min(0, low - 1)], place: (value) => value };
    // A likeness, of which what is missing to 1 counts.
    if (high === 1 && low < 1) return { ends: [low, 0], place: (value) => Math.log(1 - value) };
    return low > 0 ? { ends: [low, low / WORST_TIMES], place: Math.log } : null;
  }
  if (high === null || high <= 0) return null;
  return { ends: [high, high < 1 ? 1 : high * WORST_TIMES], place: Math.log };
}

/** The best and the worst of these values, but for the odd one out. */
function seenEnds(isHigher: boolean, known: number[]): [number, number] {
  const sign = isHigher ? -1 : 1;
  const sorted = known.toSorted((a, b) => a - b);
  const at = (share: number) => sorted[Math.round(share * (sorted.length - 1))]!;
  const best = isHigher ? at(0.95) : at(0.05);
  const usual = isHigher ? at(0.01) : at(0.99);
  // One bad op among hundreds of good ones is an end of the scale, too.
  const worst = sign * (usual - best) > 0 ? usual : isHigher ? at(0) : at(1);
  return [best, sign * (worst - best) > 0 ? worst : best];
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

/** A CSS color that works in light and dark: nothing at 0, then from amber to red, or gray for what was inherited. */
export function colorOf(level: number, inherited = false): string {
  if (!(level > 0)) return "transparent";
  if (inherited) return `hsl(215 8% 50% / ${(0.1 + 0.32 * level).toFixed(3)})`;
  const hue = Math.round(48 - 44 * level);
  return `hsl(${hue} 90% 50% / ${(0.18 + 0.4 * level).toFixed(3)})`;
}

/** Of a difference: -1 is much worse (red), 0 the same, 1 much better (blue); apart also for the color-blind. */
export function differenceColor(level: number): string {
  const size = Math.min(1, Math.abs(level));
  if (!(size > 0.01)) return "transparent";
  return `hsl(${level < 0 ? "8 90%" : "212 85%"} 52% / ${(0.1 + 0.45 * size).toFixed(3)})`;
}
