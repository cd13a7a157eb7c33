// What the key of an objective tells about it: nothing else is stored, and people call theirs as they like.

import type { ColumnSpec } from "./records.ts";

const UNITS: [suffix: string, unit: string][] = [
  ["per_s", "per s"],
  ["per_sec", "per s"],
  ["per_second", "per s"],
  ["ns", "ns"],
  ["us", "µs"],
  ["ms", "ms"],
  ["s", "s"],
  ["sec", "s"],
  ["seconds", "s"],
  ["bytes", "bytes"],
  ["kb", "kB"],
  ["mb", "MB"],
  ["gb", "GB"],
  ["kib", "KiB"],
  ["mib", "MiB"],
  ["gib", "GiB"],
  ["share", "share"],
  ["pct", "%"],
  ["percent", "%"],
  ["db", "dB"],
  ["bits", "bits"],
  ["w", "W"],
  ["j", "J"],
  ["mj", "mJ"],
  ["mhz", "MHz"],
];
/** Of time, size and energy less is better, whatever they are of: score_latency_ms is no score. */
const COSTS = new Set("ns µs ms s bytes kB MB GB KiB MiB GiB bits W J mJ".split(" "));
const LESS = /drop|loss|error/i;
const MORE = /(^|_)(per_s(ec(ond)?)?$|savings?(_|$))/i;
const COST = /(^|_)(latency|time|duration|energy)(_|$)/i;
const RATE = /throughput|(^|_)(fps|qps|ips)(_|$)/i;
const QUALITY =
  /(^|_)(speedup|accuracy|acc|top_?\d|f1|auc|bleu|rouge|score|recall|precision|iou|sqnr|psnr|agreement)(_|$)/i;

function betterOf(key: string, unit: string): "higher" | "lower" {
  if (LESS.test(key)) return "lower";
  if (MORE.test(key)) return "higher";
  if (COST.test(key)) return "lower";
  return RATE.test(key) || (QUALITY.test(key) && !COSTS.has(unit)) ? "higher" : "lower";
}

/** What an objective's key tells about it. */
export function objective(key: string): ColumnSpec & { label: string; unit: string; better: "higher" | "lower" } {
  const lower = key.toLowerCase();
  const [suffix, unit] = UNITS.find(([end]) => lower.endsWith(`_${end}`) || lower === end) ?? ["", ""];
  const stem = lower === suffix || !suffix ? key : key.slice(0, -suffix.length - 1);
  const words = stem.replaceAll(/[_./-]+/g, " ").trim() || key;
  return {
    name: `objectives.${key}`,
    label: words[0]!.toUpperCase() + words.slice(1),
    unit,
    better: betterOf(key, unit),
    help: `What the trial logged as the objective ${key}.${unit ? "" : " Its name tells no unit."}`,
  };
}

/** The objective that accuracy is paid with, if one looks like it. */
export function mainObjective(keys: string[]): string | undefined {
  return [/latency/i, /time/i, /size/i, /./].map((wanted) => keys.find((key) => wanted.test(key))).find(Boolean);
}
