// Trials against each other: what is better, what is lost, which ops differ. Pure functions.

import type { TextColumn, Trial } from "./records.ts";
import { sampled } from "./scale.ts";
import type { SortKey } from "./state.ts";

/** Config columns whose change is worth telling, with the word that goes before it. */
export const CONFIG: Record<string, string> = {
  weight_dtype: "weights",
  weight_granularity: "weights",
  act_dtype: "activations",
  act_scheme: "activations",
};

export interface Drop {
  /** Positive is worse than the baseline. */
  absolute: number;
  /** As a share of the baseline. */
  relative: number;
}

export function drop({ accuracy, baseline, lower_is_better }: Trial): Drop | null {
  if (accuracy == null || baseline == null) return null;
  const absolute = lower_is_better ? accuracy - baseline : baseline - accuracy;
  return { absolute, relative: baseline === 0 ? Number.NaN : absolute / Math.abs(baseline) };
}

/** null where there is no target or nothing to hold against it. */
export function targetMet({ accuracy, target, lower_is_better }: Trial): boolean | null {
  if (accuracy == null || target == null) return null;
  return lower_is_better ? accuracy <= target : accuracy >= target;
}

export interface Best {
  value: number;
  /** Whether this trial was the first to reach it. */
  isNew: boolean;
}

/** The best accuracy up to each trial; losses and accuracies are kept apart. */
export function bestSoFar(trials: (Trial | null)[]): (Best | null)[] {
  const best = new Map<boolean, number>();
  return trials.map((trial) => {
    if (trial?.accuracy == null) return null;
    const isLoss = trial.lower_is_better ?? false;
    const before = best.get(isLoss);
    const isNew = before === undefined || isBetter(trial.accuracy, before, isLoss);
    if (isNew) best.set(isLoss, trial.accuracy);
    return { value: best.get(isLoss)!, isNew };
  });
}

function isBetter(a: number, b: number, lower: boolean): boolean {
  return lower ? a < b : a > b;
}

export interface Point {
  x: number;
  y: number;
}

/** Places of the points that no other beats in one direction without losing in the other, from good x to bad x. */
export function paretoFront(points: Point[], lowerX: boolean, lowerY: boolean): number[] {
  const signX = lowerX ? 1 : -1;
  const signY = lowerY ? 1 : -1;
  const known = points.flatMap(({ x, y }, i) => (Number.isNaN(x + y) ? [] : [i]));
  known.sort((a, b) => signX * (points[a]!.x - points[b]!.x) || signY * (points[a]!.y - points[b]!.y));
  const front: number[] = [];
  for (const i of known) {
    const last = points[front.at(-1)!];
    const { x, y } = points[i]!;
    if (!last || isBetter(y, last.y, lowerY) || (x === last.x && y === last.y)) front.push(i);
  }
  return front;
}

interface Union {
  names: string[];
  /** For each table the row of every name, -1 where the table has no such op. */
  rows: Int32Array[];
}

/** All ops in the order of the first table; an op that it lacks comes after its predecessor in its own table. */
export function unionOfOps(tables: readonly (readonly string[])[]): Union {
  const after = new Map<string, string | null>();
  let first: string | null = null;
  for (const table of tables) {
    let previous: string | null = null;
    for (const name of table) {
      if (!after.has(name)) {
        after.set(name, previous === null ? first : after.get(previous)!);
        if (previous === null) first = name;
        else after.set(previous, name);
      }
      previous = name;
    }
  }
  const names: string[] = [];
  for (let name = first; name !== null; name = after.get(name)!) names.push(name);
  const place = new Map(names.map((name, i) => [name, i]));
  const rows = tables.map((table) => {
    const found = new Int32Array(names.length).fill(-1);
    table.forEach((name, row) => {
      found[place.get(name)!] = row;
    });
    return found;
  });
  return { names, rows };
}

/** Values in the order of the union. */
export function aligned(values: ArrayLike<number>, rows: Int32Array): Float64Array {
  return Float64Array.from(rows, (row) => (row < 0 ? Number.NaN : values[row]!));
}

export function difference(values: ArrayLike<number>, base: ArrayLike<number>): Float64Array {
  return Float64Array.from(values, (value, i) => value - base[i]!);
}

/** Which rows have another text than the base; rows that one of the two lacks have not. */
export function changedConfig(base: TextColumn, baseRows: Int32Array, other: TextColumn, rows: Int32Array): Uint8Array {
  const codeOf = new Map(base.texts.map((text, code) => [text, code]));
  const baseCode = other.texts.map((text) => codeOf.get(text) ?? -1);
  return Uint8Array.from(rows, (row, i) => {
    const baseRow = baseRows[i]!;
    return row >= 0 && baseRow >= 0 && baseCode[other.codes[row]!] !== base.codes[baseRow] ? 1 : 0;
  });
}

export type Config = Record<string, string>;

export interface Change {
  /** "weights" or "activations"; empty where both changed alike. */
  what: string;
  from: string;
  to: string;
}

/** What changed in one op; how an op was quantized is left out where it no longer is. */
export function changesOf(before: Config, after: Config): Change[] {
  const change = (key: string, otherwise = ""): Change => ({
    what: CONFIG[key]!,
    from: before[key] || otherwise,
    to: after[key] || otherwise,
  });
  const dtypes = ["weight_dtype", "act_dtype"]
    .filter((key) => before[key] !== after[key])
    .map((key) => change(key, "fp32"));
  const [one, two] = dtypes;
  const ways = ["weight_granularity", "act_scheme"]
    .filter((key) => before[key] && after[key] && before[key] !== after[key])
    .map((key) => change(key));
  return [...(one && two && one.from === two.from && one.to === two.to ? [{ ...one, what: "" }] : dtypes), ...ways];
}

/** Such as "weights per tensor → per channel". */
export function describeChange({ what, from, to }: Change): string {
  return `${what} ${from} → ${to}`.trim();
}

/** For narrow cells, which would cut off the end, and with it what is new. */
export function shortChange(change: Change): string {
  return change.what ? `${change.what} → ${change.to}` : describeChange(change);
}

/**
 * The largest difference from the base in each row, with its sign. Infinity where the config changed and only one
 * side has a value, since an op that is no longer quantized has no error to subtract; NaN where nothing is known.
 */
export function largestDifference(values: Float64Array[], changed: (Uint8Array | null)[]): Float64Array {
  const [base, ...others] = values;
  return Float64Array.from(base ?? [], (from, row) => {
    let largest = Number.NaN;
    others.forEach((other, i) => {
      const to = other[row]!;
      const by =
        Number.isNaN(from) !== Number.isNaN(to) && changed[i + 1]?.[row] ? Number.POSITIVE_INFINITY : to - from;
      if (!(Math.abs(by) <= Math.abs(largest)) && !Number.isNaN(by)) largest = by;
    });
    return largest;
  });
}

/** What 1 means in a picture of differences: large, but not the odd one out. */
export function spanOf(differences: Float64Array[]): number {
  const sizes = differences.flatMap((one) => sampled(one).filter(Number.isFinite).map(Math.abs)).sort((a, b) => a - b);
  return sizes[Math.floor(0.98 * (sizes.length - 1))] || (sizes.at(-1) ?? 0);
}

/** The runs to compare after a choice, those that stay in their order; null where it adds to too many. */
export function picked(compared: string[], wanted: ReadonlySet<string>, most: number): string[] | null {
  const kept = compared.filter((run) => wanted.has(run));
  const next = [...kept, ...[...wanted].filter((run) => !kept.includes(run))];
  return next.length <= Math.max(most, compared.length - 1) ? next : null;
}

/** What the column of a run is called where rows are sorted by it; the link parts such names at commas. */
export function runColumn(run: string): string {
  return `run:${encodeURIComponent(run)}`;
}

/** Keys without those of runs that are not compared (any more); the default order where none is left. */
export function usableSort(keys: SortKey[], runs: readonly string[], otherwise: SortKey[]): SortKey[] {
  const known = new Set(["name", "largest", ...runs.map(runColumn)]);
  const usable = keys.filter(({ column }) => known.has(column));
  return keys.length && !usable.length ? otherwise : usable;
}
