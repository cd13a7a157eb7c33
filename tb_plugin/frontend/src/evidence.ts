// The evidence of a suggestion as its log describes it: a label, a unit and a normal range for each number, and bars of
// channels.

import { median as medianOf, OUTLIER_RATIO, reachOf } from "./channels.ts";
import type { ChannelRow, ColumnSpec, Suggestion } from "./records.ts";

export interface Fact {
  key: string;
  label: string;
  value: number | string;
  unit: string;
  normal: [number | null, number | null] | null;
  help: string;
  /** Whether a number lies outside its normal range. */
  odd: boolean;
}

/** What logs that describe no evidence have there, besides numbers and texts. */
const UNDESCRIBED: ColumnSpec[] = [
  { name: "op", type: "op" },
  { name: "edge", type: "op" },
  { name: "channels", type: "output_channels" },
];

/** Whose channels a list of channel numbers speaks of: which row of the op that the evidence names. */
const CHANNELS_OF: Partial<Record<NonNullable<ColumnSpec["type"]>, Chart["role"]>> = {
  output_channels: "output",
  weight_channels: "weight",
};

/** The numbers and texts; ops are links elsewhere, channels are bars. A key that nobody describes is its own label. */
export function factsOf(evidence: Suggestion["evidence"], described: ColumnSpec[] = UNDESCRIBED): Fact[] {
  const specs = new Map(described.map((spec) => [spec.name, spec]));
  return Object.entries(evidence).flatMap(([key, value]): Fact[] => {
    const { type = "number", label, unit = "", normal = null, help = "" } = specs.get(key) ?? {};
    if ((type !== "number" && type !== "text") || value === null || value === undefined) return [];
    const shown = typeof value === "number" || typeof value === "string" ? value : JSON.stringify(value);
    const odd = typeof shown === "number" && isOutside(shown, normal);
    return [{ key, label: label || key.replaceAll("_", " "), value: shown, unit, normal, help, odd }];
  });
}

function isOutside(value: number, normal: Fact["normal"]): boolean {
  if (!normal) return false;
  const [low, high] = normal;
  return (low !== null && value < low) || (high !== null && value > high);
}

/** Why, in a few words, for the names of rules that are not words already. */
export function ruleWords(rule: string): string {
  return rule.replaceAll("_", " ");
}

export interface Chart {
  role: "output" | "weight";
  /** Ops whose channels may show the reason, the likeliest first. */
  ops: string[];
  /** Channels that stand out, if any do. */
  channels: number[];
}

/** The pictures of channels that the evidence asks for: those of the op named as `edge`, or else as `op`. */
export function chartsOf({ evidence, ops }: Pick<Suggestion, "evidence" | "ops">, described?: ColumnSpec[]): Chart[] {
  const isOp = (name: string) => (described ?? UNDESCRIBED).some((spec) => spec.name === name && spec.type === "op");
  const [edge, op] = ["edge", "op"].map((name) => (isOp(name) ? evidence[name] : null));
  const named = typeof edge === "string" ? edge : op;
  if (typeof named !== "string") return [];
  // Logs of version 1 have no edge, and name the op that suffers: the channels to blame are often of one before it.
  const tried = described || named === edge ? [named] : [...new Set([named, ...ops.slice(0, MOST_TRIED)])];
  return (described ?? UNDESCRIBED).flatMap(({ name, type = "number" }): Chart[] => {
    const [role, channels] = [CHANNELS_OF[type], evidence[name]];
    return role && Array.isArray(channels) ? [{ role, ops: tried, channels }] : [];
  });
}

const MOST_TRIED = 3;

/** Whether one of the marked channels stands out as the rule says; without marks any row will do. */
export function standsOut({ bars, median }: ChannelBars): boolean {
  const marked = bars.filter((bar) => bar.marked);
  return !marked.length || marked.some((bar) => bar.reach > OUTLIER_RATIO * median);
}

export interface Bar {
  /** Channels [from, to); more than one where there are more channels than room. */
  from: number;
  to: number;
  /** The largest reach among them: the larger of |min| and |max|. */
  reach: number;
  /** The worst signal to noise among them; NaN if unknown. */
  sqnrDb: number;
  marked: boolean;
}

export interface ChannelBars {
  bars: Bar[];
  median: number;
  largest: number;
  /** The smallest above zero. */
  smallest: number;
  count: number;
}

export function channelBars(row: ChannelRow, marked: ReadonlySet<number>, most: number): ChannelBars | null {
  const reach = row.min.map((low, i) => reachOf(low ?? 0, row.max[i] ?? 0));
  const alive = reach.filter((one) => one > 0).sort((a, b) => a - b);
  if (!alive.length) return null;
  const median = medianOf(alive);
  const count = Math.min(most, reach.length);
  const bars = Array.from({ length: count }, (_, i): Bar => {
    const from = Math.floor((i * reach.length) / count);
    const to = Math.floor(((i + 1) * reach.length) / count);
    const known = row.sqnr_db.slice(from, to).filter((db) => db !== null);
    return {
      from,
      to,
      reach: Math.max(...reach.slice(from, to)),
      sqnrDb: known.length ? Math.min(...known) : Number.NaN,
      marked: Array.from({ length: to - from }, (_, at) => from + at).some((channel) => marked.has(channel)),
    };
  });
  return { bars, median, largest: alive.at(-1)!, smallest: alive[0]!, count: reach.length };
}
