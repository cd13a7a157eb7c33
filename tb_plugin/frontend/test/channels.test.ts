import assert from "node:assert/strict";
import { test } from "node:test";
import { channelsOf, median, ordered } from "../src/channels.ts";

const row = {
  op: "a",
  role: "output" as const,
  min: [-1, -30, null, 0],
  max: [0.5, 2, null, 1],
  q_min: [-1, -30, null, 0],
  q_max: [0.5, 2, null, 1],
  sqnr_db: [3, 40, null, 20],
};

test("an outlier is more than eight times the median", () => {
  // reaches 1, 30, none, 1: the median of the known ones is 1
  const found = channelsOf(row);
  assert.deepEqual(
    found.map(({ reach }) => reach),
    [1, 30, Number.NaN, 1],
  );
  assert.deepEqual(
    found.map(({ isOutlier }) => isOutlier),
    [false, true, false, false],
  );
});

test("worst first, channels without values last", () => {
  const by = (order: "reach" | "sqnr" | "index") => ordered(channelsOf(row), order).map(({ index }) => index);
  assert.deepEqual(by("reach"), [1, 0, 3, 2]);
  assert.deepEqual(by("sqnr"), [0, 3, 1, 2]);
  assert.deepEqual(by("index"), [0, 1, 2, 3]);
});

test("median", () => {
  assert.equal(median([3, 1, 2]), 2);
  assert.equal(median([4, 1, 2, 3]), 2.5);
  assert.ok(Number.isNaN(median([])));
});
