// What the evidence of a suggestion means: a label, a unit and a normal range for each number, and its channels as bars.

import { median as medianOf, OUTLIER_RATIO, reachOf } from "./channels.ts";
import type { ChannelRow, Suggestion } from "./records.ts";

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

type Meaning = Pick<Fact, "label" | "unit" | "normal" | "help">;

function meaning(label: string, unit: string, normal: Fact["normal"], help: string): Meaning {
  return { label, unit, normal, help };
}

/** The normal ranges are those of the same numbers in the op table (inc_tb/metrics.py). */
const MEANINGS: Record<string, Meaning> = {
  added_sqnr_db: meaning(
    "added SQNR",
    "dB",
    [25, null],
    "Signal to noise of the op's output when only its own quantization is at work.",
  ),
  error_left: meaning(
    "error left at the output",
    "ratio",
    [null, 0.003],
    "Error of the model's output with these ops in fp32, relative to how much the output varies between samples.",
  ),
  recovered: meaning(
    "error removed",
    "share",
    null,
    "Share of the output's error that goes away when these ops stay in fp32. Measured with all of them together.",
  ),
  channel_ratio: meaning(
    "channel ratio",
    "ratio",
    [1, 16],
    "The largest channel's range over the median channel's. All share one scale, so the small ones get few steps.",
  ),
  lost_channels: meaning(
    "lost channels",
    "share",
    [null, 0],
    "Share of the channels that have less than 10 dB signal to noise.",
  ),
  median_channel_sqnr_db: meaning(
    "median channel SQNR",
    "dB",
    [25, null],
    "Signal to noise of the median channel; the whole tensor may look better because its large channels do.",
  ),
  clipped: meaning(
    "clipped",
    "share",
    [null, 0.001],
    "Share of the values that lie outside what the quantized type can hold.",
  ),
  flushed: meaning("flushed to zero", "share", [null, 0.2], "Share of the non-zero values that become exactly zero."),
  weight_sqnr_db: meaning(
    "weight SQNR",
    "dB",
    [25, null],
    "Signal to noise of the weights after rounding, of the whole or of the median channel, whichever is worse.",
  ),
  expected_gain_db: meaning(
    "expected gain",
    "dB",
    null,
    "How much better the weights would be with a scale for each channel. Estimated from the channels' ranges.",
  ),
  share_in_tails: meaning(
    "values in the tails",
    "share",
    [0.01, null],
    "Share of the values in the outer 15/16 of the range; if there are hardly any, the steps there are wasted.",
  ),
  reach: meaning("reach", "value", null, "The largest magnitude that occurs."),
  kurtosis: meaning("kurtosis", "", [1, 30], "How heavy the tails are: 3 for a bell curve, 1.8 for an even spread."),
  ratio: meaning(
    "ratio of the inputs' ranges",
    "ratio",
    [1, 16],
    "The range of the largest input over that of the smallest; both share one scale.",
  ),
  low: meaning("lower limit", "value", null, "The lowest value that the quantized type can hold."),
  high: meaning("upper limit", "value", null, "The highest value that the quantized type can hold."),
  min: meaning("smallest weight", "value", null, "The smallest weight in fp32."),
  max: meaning("largest weight", "value", null, "The largest weight in fp32."),
  std: meaning("spread of the weights", "value", null, "Standard deviation of the weights in fp32."),
  non_finite: meaning(
    "NaN or infinite",
    "count",
    [null, 0],
    "Values that are NaN or infinite in the quantized model only.",
  ),
  share: meaning("share of all values", "share", [null, 0], "Share of the values that are NaN or infinite."),
  value: meaning("constant value", "value", null, "The only value that the quantized op gives."),
  fp32_std: meaning("spread in fp32", "value", null, "Standard deviation of the same output in fp32."),
  scale: meaning("scale", "value", null, "The size of one quantization step."),
  places: meaning(
    "places",
    "count",
    null,
    "How many times the same was found under names that differ by an index only.",
  ),
  matches: meaning("matching ops", "count", null, "How many ops of the model have such names."),
  type: meaning("kind", "", null, "The type of op that is known to suffer from quantization."),
  place: meaning("layer with weights", "", null, "Where in the model it is."),
};

/** Evidence that is shown in another way: ops as links, channels as bars. */
const ELSEWHERE = new Set(["op", "edge", "channels"]);

export function factsOf(evidence: Record<string, unknown>): Fact[] {
  return Object.entries(evidence).flatMap(([key, value]): Fact[] => {
    if (ELSEWHERE.has(key) || value === null || value === undefined) return [];
    const known = MEANINGS[key] ?? meaning(key.replaceAll("_", " "), "", null, "");
    const shown = typeof value === "number" || typeof value === "string" ? value : JSON.stringify(value);
    return [{ key, ...known, value: shown, odd: typeof shown === "number" && isOutside(shown, known.normal) }];
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
}

/** Logs of version 1 name the op that suffers, not the one whose channels are to blame: often one before it. */
export function chartOf({ rule, evidence, ops }: Pick<Suggestion, "rule" | "evidence" | "ops">): Chart | null {
  const { edge, op, channels } = evidence;
  if (typeof op !== "string") return null;
  if (rule.startsWith("weight")) return { role: "weight", ops: [op] };
  if (!Array.isArray(channels)) return null;
  return { role: "output", ops: typeof edge === "string" ? [edge] : [...new Set([op, ...ops.slice(0, MOST_TRIED)])] };
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
