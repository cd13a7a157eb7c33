// What keeping several suggestions' ops in fp32 gives together: they may share ops, so the parts do not add up.

import { type Column, numberAt } from "./records.ts";

/** The share of these rows in the noise that all ops add, each relative to its own signal; as inc_tb/judge.py counts it. */
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

/** How much longer these rows take in fp32 than in int8 with conversion, in µs; NaN where no times are known. */
export function timeInFp32([fp32, int8, convert]: Column[], rows: Iterable<number>): number {
  let more = Number.NaN;
  for (const row of rows) {
    const one = numberAt(fp32, row) - numberAt(int8, row) - (numberAt(convert, row) || 0);
    if (!Number.isNaN(one)) more = (more || 0) + one;
  }
  return more;
}
