import assert from "node:assert/strict";
import { test } from "node:test";
import { noiseShare, timeInFp32 } from "../src/effects.ts";
import { numbers } from "./tables.ts";

test("the share of the chosen ops in all noise", () => {
  // noise over signal 0.1, 0.01, nothing known, 0.01: 0.11 of 0.12 in rows 0 and 1
  const added = numbers("added_sqnr_db", [10, 20, Number.NaN, 20]);
  assert.ok(Math.abs(noiseShare(added, 4, new Set([0, 1, 2])) - 11 / 12) < 1e-12);
  assert.equal(noiseShare(added, 4, new Set()), 0);
  assert.ok(Number.isNaN(noiseShare(numbers("added_sqnr_db", [Number.NaN]), 1, new Set([0]))));
});

test("the time of the chosen ops in fp32 beyond that in int8, of those whose times are known", () => {
  const times = [
    numbers("time_fp32_us", [100, 30, 50, Number.NaN]),
    numbers("time_int8_us", [40, 35, Number.NaN, 10]),
    numbers("convert_us", [10, Number.NaN, 3, 4]),
  ];
  assert.equal(timeInFp32(times, [0, 1, 2, 3]), 45);
  assert.equal(timeInFp32(times, [1]), -5);
  assert.ok(Number.isNaN(timeInFp32(times, [2, 3])));
});
