import assert from "node:assert/strict";
import { test } from "node:test";
import { edges, extent, gridLines, rebin, shareOutside, total } from "../src/histogram.ts";
import type { HistogramRow } from "../src/records.ts";

// With top 127 the largest octave is [1, 2): bin 1024 is its last thirty-second, 993 its first, 512 the one around zero.
const TOP = 127;

test("edges are those of inc_tb.measure.histogram", () => {
  const at = edges(TOP);
  assert.equal(at.length, 1026);
  assert.deepEqual([at[1025], at[1024], at[993], at[0], at[32]], [2, 1.96875, 1, -2, -1]);
  assert.deepEqual([at[512], at[513]], [-(2 ** -15), 2 ** -15]);
});

test("extent and total", () => {
  assert.deepEqual(extent([0, 5, 1024, 2], TOP), [-2, 2]);
  assert.deepEqual(extent([], TOP), [0, 0]);
  assert.equal(total([0, 5, 1024, 2]), 7);
});

test("shares in cells; a bin in two cells is divided", () => {
  // bin 993 is [1, 1.03125): all of it in the second cell; bin 1024 is [1.96875, 2), half of it beyond 1.984375
  assert.deepEqual([...rebin([993, 3, 1024, 1], TOP, [0, 1, 1.984375, 2])], [0, 0.875, 0.125]);
});

const row = (limits: [number, number] | null, step: number | null): HistogramRow => ({
  op: "a",
  role: "output",
  top: TOP,
  reference: [0, 1, 512, 6, 1024, 3],
  quantized: [],
  error_top: TOP,
  error: [],
  limits,
  step,
});

test("share outside of the limits", () => {
  assert.equal(shareOutside(row([-1, 1], 0.5)), 0.4);
  assert.equal(shareOutside(row([-2, 1], 0.5)), 0.3);
  assert.equal(shareOutside(row(null, null)), null);
  assert.equal(shareOutside(row([-1, 1], 0.5), 0.25), 0.4);
  assert.equal(shareOutside(row([-1, 1.8], 0.5), 0.25), 0.1); // the bin at 1.97 is less than half a step away
});

test("the grid of quantized values, unless it is too fine to be seen", () => {
  assert.deepEqual(gridLines(row([-1, 1], 0.5), 10), [-1, -0.5, 0, 0.5, 1]);
  assert.deepEqual(gridLines(row([-1, 1], 0.5), 4), []);
  assert.deepEqual(gridLines(row([-1, 1], null), 10), []);
});
