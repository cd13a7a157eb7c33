import assert from "node:assert/strict";
import { test } from "node:test";
import { noiseShare, timeEffect } from "../src/effects.ts";
import type { ProfileRow } from "../src/records.ts";
import { numbers } from "./tables.ts";

test("the share of the chosen ops in all noise", () => {
  // noise over signal 0.1, 0.01, nothing known, 0.01: 0.11 of 0.12 in rows 0 and 1
  const added = numbers("added_sqnr_db", [10, 20, Number.NaN, 20]);
  assert.ok(Math.abs(noiseShare(added, 4, new Set([0, 1, 2])) - 11 / 12) < 1e-12);
  assert.equal(noiseShare(added, 4, new Set()), 0);
  assert.ok(Number.isNaN(noiseShare(numbers("added_sqnr_db", [Number.NaN]), 1, new Set([0]))));
});

test("the time of the chosen ops in fp32 against int8: each row once, and only where the two can be told apart", () => {
  const rows: ProfileRow[] = [
    { op: "conv", ops: ["bn", "relu"], difference_us: -50, differs: true },
    { op: "add", difference_us: 8, differs: true },
    { op: "pool", difference_us: 2, differs: false },
    { op: "old", fp32_us: 10, int8_us: 5 },
  ];
  const priced = (...ops: string[]) =>
    timeEffect(rows, new Set(ops)).map(({ kind, label, value }) => [kind, label, value]);
  assert.deepEqual(priced("conv", "relu", "add", "pool", "old"), [["costs", "more time", 42]]);
  assert.deepEqual(priced("add"), [["recovers", "less time", 8]]);
  assert.deepEqual(priced("pool"), [["costs", "more time", 0]]);
  assert.match(timeEffect(rows, new Set(["pool"]))[0]!.how, /^inside the noise/);
  assert.deepEqual(priced("old", "gone"), []);
});
