// One tensor channel by channel: which channels stand out.

import type { ChannelRow } from "./records.ts";

/** OUTLIER_RATIO and LOST_CHANNEL_DB of inc_tb/advise/scene.py, by which the rules judge. */
export const OUTLIER_RATIO = 8;
export const LOST_DB = 10;

export interface Channel {
  index: number;
  min: number;
  max: number;
  qMin: number;
  qMax: number;
  /** The larger of |min| and |max|. */
  reach: number;
  /** NaN where there is no signal or no error. */
  sqnr: number;
  isOutlier: boolean;
}

export type ChannelOrder = "reach" | "sqnr" | "index";

export function channelsOf(row: ChannelRow): Channel[] {
  const found = row.min.map((_, index) => {
    const [min, max, qMin, qMax] = [row.min, row.max, row.q_min, row.q_max].map((of) => of[index] ?? Number.NaN);
    const reach = reachOf(min!, max!);
    return { index, min: min!, max: max!, qMin: qMin!, qMax: qMax!, reach, sqnr: row.sqnr_db[index] ?? Number.NaN };
  });
  const middle = median(found.map(({ reach }) => reach).filter((reach) => reach > 0));
  return found.map((channel) => ({ ...channel, isOutlier: channel.reach > OUTLIER_RATIO * middle }));
}

/** Worst first; channels without a value last. */
export function ordered(channels: Channel[], by: ChannelOrder): Channel[] {
  const rank = ({ index, reach, sqnr }: Channel) => (by === "index" ? index : by === "reach" ? -reach : sqnr);
  const last = (value: number) => (Number.isNaN(value) ? Number.POSITIVE_INFINITY : value);
  return [...channels].sort((a, b) => last(rank(a)) - last(rank(b)) || a.index - b.index);
}

export function reachOf(min: number, max: number): number {
  return Math.max(Math.abs(min), Math.abs(max));
}

export function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length / 2;
  if (!sorted.length) return Number.NaN;
  return sorted.length % 2 ? sorted[Math.floor(middle)]! : (sorted[middle - 1]! + sorted[middle]!) / 2;
}
