import assert from "node:assert/strict";
import { test } from "node:test";
import { sorted } from "../src/order.ts";
import { ADDED, EFFECT, heads, isBad, worstFirst } from "../src/worst.ts";
import { numbers, table } from "./tables.ts";

const NONE = Number.NaN;
const rows = (count: number) => Uint32Array.from(Array(count).keys());

test("what was measured at the output comes before what is added, and decides where both are known", () => {
  const columns = table(numbers(EFFECT, [0.24, 0.24, 0.03, NONE, NONE]), numbers(ADDED, [30, NONE, 17, 12, 40]));
  // row 2 adds most of those that were measured, row 3 of all: neither is what the output suffers from
  assert.deepEqual([...sorted(rows(5), worstFirst(EFFECT), columns)], [0, 1, 2, 3, 4]);
  assert.deepEqual([...sorted(rows(5), worstFirst(ADDED), columns)], [3, 2, 0, 4, 1]);
});

test("ops that change precision together count once, and those without a value not at all", () => {
  const effect = numbers(EFFECT, [0.24, 0.24, 0.03, NONE]);
  assert.deepEqual(heads([0, 1, 2, 3], effect, 9), [0, 2]);
  assert.deepEqual(heads([0, 1, 2, 3], effect, 1), [0]);
  // two ops may well add the same
  assert.deepEqual(heads([0, 1], numbers(ADDED, [20, 20]), 9), [0, 1]);
  assert.deepEqual(heads([0], undefined, 9), []);
});

test("bad is what lies outside of the normal range of its column", () => {
  assert.equal(isBad(numbers(ADDED, [24.9], { normal: [25, null] }), 0), true);
  assert.equal(isBad(numbers(ADDED, [25], { normal: [25, null] }), 0), false);
  assert.equal(isBad(numbers(EFFECT, [0.0031], { normal: [0, 0.003] }), 0), true);
  assert.equal(isBad(numbers(EFFECT, [NONE], { normal: [0, 0.003] }), 0), false);
  assert.equal(isBad(numbers("x", [1]), 0), false);
});
