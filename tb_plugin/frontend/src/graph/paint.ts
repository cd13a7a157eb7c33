// What a column says about ops and groups: the value as text and its color; of a group the worst or only one.

import { plural, withUnit } from "../format.ts";
import { VERDICTS } from "../order.ts";
import { type Column, type ColumnSpec, type NumberColumn, numberAt, textAt, whyNull } from "../records.ts";
import { colorOf, type Scale, scaleOf } from "../scale.ts";
import type { Item, Op, Tree } from "./group.ts";
import { type Kinds, kindsOf, OTHER } from "./kinds.ts";

interface Extremes {
  /** How many ops have a value. */
  known: number;
  low: Op;
  high: Op;
}

export interface Mark {
  /** The value with its unit; empty where there is none. */
  text: string;
  color: string;
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
  /** What the colors of a column of texts mean. */
  kinds: Kinds | null;
  /** The worst op of the model, if it is worse than normal. */
  worst: Op | null;
  markOf: (item: Item) => Mark;
}

type MarkOf = (item: Item) => Omit<Mark, "verdict">;

const VERDICT_LEVELS: Record<string, number> = { bad: 1, watch: 0.3, ok: 0 };
const NOT_THERE = "the op is not in the op table";
const NONE_INSIDE = "none of its ops has a value";

function verdictColor(verdict: string): string {
  return colorOf(VERDICT_LEVELS[verdict] ?? 0);
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

/** The column "reason" tells why values are missing, where their own column does not. */
export function paintBy(
  tree: Tree,
  column: Column,
  verdicts: Column | undefined,
  rowOf: ReadonlyMap<string, number>,
  reason?: Column,
): Paint {
  const rows = tree.ops.map((op) => rowOf.get(op.name) ?? -1);
  const ranks = rows.map((row) => {
    const verdict = row < 0 ? "" : textAt(verdicts, row);
    return verdict ? VERDICTS.indexOf(verdict) : Number.NaN;
  });
  const worstRanks = extremesOf(tree, ranks);
  const worstOf = (item: Item) => (item.kind === "op" ? item : worstRanks.get(item.id)?.low);
  const verdictOf = (item: Item) => {
    const op = worstOf(item);
    return (op && VERDICTS[ranks[op.index]!]) ?? "";
  };
  const paint = (found: Omit<Paint, "spec" | "markOf" | "worst">, markOf: MarkOf): Paint => ({
    ...found,
    spec: column.spec,
    worst: column.kind === "number" ? worstOp(tree, column, rows, found.scale) : null,
    markOf: (item) => ({ ...markOf(item), verdict: verdictOf(item) }),
  });
  if (column.kind === "number") {
    const scale = scaleOf(column);
    return paint({ scale, kinds: null }, numberMarks(tree, column, rows, scale, reason));
  }
  if (column.spec.name !== "verdict") {
    const texts = rows.map((row) => (row < 0 ? "" : textAt(column, row)));
    const kinds = kindsOf(texts);
    return paint({ scale: null, kinds }, kindMarks(tree, rows, texts, kinds));
  }
  const own = Object.keys(VERDICT_LEVELS).map((text) => ({ text, color: verdictColor(text) }));
  return paint({ scale: null, kinds: { own, others: 0 } }, (item) => {
    const text = verdictOf(item);
    const worst = item.kind === "group" ? (worstOf(item) ?? null) : null;
    return { text, color: verdictColor(text), missing: "", worst };
  });
}

function worstOp(tree: Tree, column: NumberColumn, rows: number[], scale: Scale | null): Op | null {
  const sign = column.spec.better === "higher" ? -1 : 1;
  let worst: { op: Op; value: number } | null = null;
  for (const op of column.spec.better ? tree.ops : []) {
    const value = sign * numberAt(column, rows[op.index]!);
    if (value > (worst?.value ?? Number.NEGATIVE_INFINITY)) worst = { op, value };
  }
  return worst && scale && scale.level(sign * worst.value) > 0 ? worst.op : null;
}

function numberMarks(
  tree: Tree,
  column: NumberColumn,
  rows: number[],
  scale: Scale | null,
  reason: Column | undefined,
): MarkOf {
  const { spec } = column;
  const values = rows.map((row) => (row < 0 ? Number.NaN : numberAt(column, row)));
  const extremes = extremesOf(tree, values);
  const ofOp = (op: Op) => {
    const value = values[op.index]!;
    const row = rows[op.index]!;
    if (Number.isNaN(value)) {
      return { text: "", color: "", missing: row < 0 ? NOT_THERE : whyNull(column, row, reason), worst: null };
    }
    const color = scale ? scale.color(value) : "";
    return { text: withUnit(value, spec.unit), color, missing: "", worst: null };
  };
  return (item) => {
    if (item.kind === "op") return ofOp(item);
    const found = extremes.get(item.id);
    if (!found) return { text: "", color: "", missing: NONE_INSIDE, worst: null };
    if (spec.better) {
      const worst = spec.better === "higher" ? found.low : found.high;
      return { ...ofOp(worst), worst };
    }
    const [low, high] = [found.low, found.high].map((op) => withUnit(values[op.index]!, spec.unit));
    return { text: low === high ? low! : `${low} to ${high}`, color: "", missing: "", worst: null };
  };
}

function kindMarks(tree: Tree, rows: number[], texts: string[], kinds: Kinds): MarkOf {
  const colors = new Map(kinds.own.map(({ text, color }) => [text, color]));
  const colorOfKind = (text: string) => colors.get(text) ?? OTHER;
  const inside = new Map<string, { known: number; kinds: Set<string> }>();
  for (const op of tree.ops) {
    const text = texts[op.index]!;
    for (let group = text ? op.parent : null; group; group = group.parent) {
      const before = inside.get(group.id);
      if (!before) inside.set(group.id, { known: 1, kinds: new Set([text]) });
      else {
        before.known++;
        before.kinds.add(text);
      }
    }
  }
  return (item) => {
    if (item.kind === "op") {
      const text = texts[item.index]!;
      if (text) return { text, color: colorOfKind(text), missing: "", worst: null };
      return { text, color: "", missing: rows[item.index]! < 0 ? NOT_THERE : "", worst: null };
    }
    const found = inside.get(item.id);
    if (!found) return { text: "", color: "", missing: NONE_INSIDE, worst: null };
    const [only, ...others] = found.kinds;
    if (others.length) return { text: plural(found.kinds.size, "kind"), color: "", missing: "", worst: null };
    // A group of which one op is int8 is not int8.
    const text = found.known < item.ops ? `${only} in ${found.known}` : only!;
    return { text, color: colorOfKind(only!), missing: "", worst: null };
  };
}
