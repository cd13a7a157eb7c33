// What a column says about ops and groups: the value as text, its colour, and for a group the worst of its ops.

import { withUnit } from "../format.ts";
import { VERDICTS } from "../order.ts";
import { type Column, type ColumnSpec, numberAt, textAt, whyNull } from "../records.ts";
import { colourOf, type Scale, scaleOf } from "../scale.ts";
import type { Item, Op, Tree } from "./group.ts";

export interface Extremes {
  /** How many ops have a value. */
  known: number;
  low: Op;
  high: Op;
}

export interface Mark {
  /** The value with its unit; empty where there is none. */
  text: string;
  colour: string;
  /** bad, watch, ok or nothing; of a group, the worst. */
  verdict: string;
  /** Why there is no value, where that is known. */
  missing: string;
  /** The op that a group's value is from. */
  worst: Op | null;
}

export interface Paint {
  spec: ColumnSpec;
  scale: Scale | null;
  markOf: (item: Item) => Mark;
}

const VERDICT_LEVELS: Record<string, number> = { bad: 1, watch: 0.3, ok: 0 };

export function verdictColour(verdict: string): string {
  return colourOf(VERDICT_LEVELS[verdict] ?? 0);
}

/** Lowest and highest value below each group that has any; values by position of the op, NaN for none. */
export function extremesOf(tree: Tree, values: ArrayLike<number>): Map<string, Extremes> {
  const found = new Map<string, Extremes>();
  for (const op of tree.ops) {
    const value = values[op.index]!;
    if (Number.isNaN(value)) continue;
    for (let group = op.parent; group; group = group.parent) {
      const before = found.get(group.id);
      if (!before) {
        found.set(group.id, { known: 1, low: op, high: op });
        continue;
      }
      before.known++;
      if (value < values[before.low.index]!) before.low = op;
      if (value > values[before.high.index]!) before.high = op;
    }
  }
  return found;
}

export function paintBy(
  tree: Tree,
  column: Column,
  verdicts: Column | undefined,
  rowOf: ReadonlyMap<string, number>,
): Paint {
  const rows = tree.ops.map((op) => rowOf.get(op.name) ?? -1);
  const ranks = rows.map((row) => {
    const verdict = row < 0 ? "" : textAt(verdicts, row);
    return verdict ? VERDICTS.indexOf(verdict) : Number.NaN;
  });
  const worstRanks = extremesOf(tree, ranks);
  const verdictOf = (item: Item) => {
    const op = item.kind === "op" ? item : worstRanks.get(item.id)?.low;
    return (op && VERDICTS[ranks[op.index]!]) ?? "";
  };
  if (column.kind === "text") {
    const markOf = (item: Item): Mark => {
      const verdict = verdictOf(item);
      const worst = item.kind === "group" ? (worstRanks.get(item.id)?.low ?? null) : null;
      return { text: verdict, colour: verdictColour(verdict), verdict, missing: "", worst };
    };
    return { spec: column.spec, scale: null, markOf };
  }
  const { spec } = column;
  const scale = scaleOf(column);
  const values = rows.map((row) => (row < 0 ? Number.NaN : numberAt(column, row)));
  const extremes = extremesOf(tree, values);
  const ofOp = (op: Op): Omit<Mark, "verdict"> => {
    const value = values[op.index]!;
    const row = rows[op.index]!;
    if (Number.isNaN(value)) {
      const missing = row < 0 ? "the op is not in the op table" : whyNull(column, row);
      return { text: "", colour: "", missing, worst: null };
    }
    return {
      text: withUnit(value, spec.unit),
      colour: scale ? colourOf(scale.level(value)) : "",
      missing: "",
      worst: null,
    };
  };
  const markOf = (item: Item): Mark => {
    const verdict = verdictOf(item);
    if (item.kind === "op") return { ...ofOp(item), verdict };
    const found = extremes.get(item.id);
    if (!found) return { text: "", colour: "", verdict, missing: "none of its ops has a value", worst: null };
    if (spec.better) {
      const worst = spec.better === "higher" ? found.low : found.high;
      return { ...ofOp(worst), verdict, worst };
    }
    const [low, high] = [found.low, found.high].map((op) => withUnit(values[op.index]!, spec.unit));
    return { text: low === high ? low! : `${low} to ${high}`, colour: "", verdict, missing: "", worst: null };
  };
  return { spec, scale, markOf };
}
