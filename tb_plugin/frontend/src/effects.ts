// What keeping several suggestions' ops in fp32 gives together: they may share ops, so the parts do not add up.

import { type Column, type Effect, numberAt, type ProfileRow } from "./records.ts";

/** The share of these rows in the noise that all ops add, each relative to its own signal; as inc_tb/advise/judge.py counts it. */
export function noiseShare(added: Column, count: number, rows: ReadonlySet<number>): number {
  let all = 0;
  let chosen = 0;
  for (let row = 0; row < count; row++) {
    const noise = 10 ** (-numberAt(added, row) / 10);
    if (Number.isNaN(noise)) continue;
    all += noise;
    if (rows.has(row)) chosen += noise;
  }
  return all > 0 ? chosen / all : Number.NaN;
}

/** What keeping the ops in fp32 costs in time, or gains; as inc_tb/profiling/profile.py prices it. Fused ops go together. */
export function timeEffect(rows: ProfileRow[], ops: ReadonlySet<string>): Effect[] {
  const known = rows.filter((row) => row.differs != null && [row.op, ...(row.ops ?? [])].some((op) => ops.has(op)));
  if (!known.length) return [];
  const clear = known.filter(({ differs, difference_us }) => differs && difference_us != null);
  const change = clear.reduce((sum, row) => sum - (row.difference_us ?? 0), 0);
  const how = clear.length
    ? "fp32 minus int8 and its conversions, measured; conversions at new borders come on top"
    : "inside the noise: fp32 and int8 cannot be told apart";
  const [kind, label] = change < 0 ? (["recovers", "less time"] as const) : (["costs", "more time"] as const);
  return [{ kind, label, value: Math.abs(change), unit: "µs", basis: "measured", how, what: "time" }];
}
