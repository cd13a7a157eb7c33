import assert from "node:assert/strict";
import { test } from "node:test";
import { buckets, effects, jumps, lowest, NO_ERROR, NO_ERROR_ARRIVED } from "../src/errorline.ts";
import { numbers, table } from "./tables.ts";

test("a jump is where much more error leaves than arrives, the largest first", () => {
  const columns = table(
    numbers("arrived_sqnr_db", [50, 30, 20, 60, 22, 22]),
    numbers("total_sqnr_db", [49, 10, 8, 40, 2, 16]),
    numbers("added_sqnr_db", [50, 17, 9, 24, 38, 17]),
  );
  // row 0 loses 1 dB, row 1 20, row 2 12; row 3 loses 20 but is healthy at 40; row 4 adds nothing itself: one of its
  // inputs was bad already; row 5 loses just the 6 dB that count
  assert.deepEqual(jumps(columns, 6, 9), [
    { row: 1, arrived: 30, total: 10 },
    { row: 2, arrived: 20, total: 8 },
    { row: 5, arrived: 22, total: 16 },
  ]);
  assert.equal(jumps(columns, 6, 1).length, 1);
  assert.deepEqual(jumps(table(...[...columns.values()].slice(1)), 1), []);
});

test("the first op that is quantized may be the culprit: no error arrives there, or nothing that was compared", () => {
  const arrived = numbers("arrived_sqnr_db", [Number.NaN, Number.NaN, 12, Number.NaN], {
    nulls: {
      [NO_ERROR_ARRIVED]: [[0, 1]],
      "nothing that is compared reaches this op": [
        [1, 2],
        [3, 4],
      ],
    },
  });
  const columns = table(arrived, numbers("total_sqnr_db", [10, 3, 8, 5]), numbers("added_sqnr_db", [10, 3, 40, 41]));
  // the last row is healthy by itself: its error comes from where nothing was compared
  assert.deepEqual(jumps(columns, 4), [
    { row: 1, arrived: Number.NaN, total: 3 },
    { row: 0, arrived: Number.POSITIVE_INFINITY, total: 10 },
  ]);
});

test("an op of which nobody knows what it adds is told of, and one that adds nothing is not", () => {
  const columns = table(
    numbers("arrived_sqnr_db", [30, 30, Number.NaN]),
    numbers("total_sqnr_db", [10, 10, 20]),
    numbers("added_sqnr_db", [Number.NaN, Number.NaN, Number.NaN], { nulls: { [NO_ERROR]: [[1, 2]] } }),
  );
  assert.deepEqual(jumps(columns, 3), [
    { row: 0, arrived: 30, total: 10 },
    { row: 2, arrived: Number.NaN, total: 20 },
  ]);
});

test("where the output was measured, the ops that do more to it than is normal, a unit once", () => {
  const effect = numbers("sensitivity", [0.003, 0.03, 0.24, 0.24, Number.NaN, 0.1], { normal: [0, 0.003] });
  const columns = table(effect, numbers("added_sqnr_db", [9, 17, 30, Number.NaN, 5, 20]));
  assert.deepEqual(effects(columns, 6, 9), [2, 5, 1]);
  assert.deepEqual(effects(columns, 6, 1), [2]);
  assert.deepEqual(effects(table(), 6), []);
});

test("the lowest place of the line", () => {
  assert.deepEqual(lowest(numbers("total_sqnr_db", [Number.NaN, 30, 7, 8]), 4), { row: 2, value: 7 });
  assert.equal(lowest(numbers("total_sqnr_db", [Number.NaN]), 1), null);
  assert.equal(lowest(undefined, 1), null);
});

test("many rows become few buckets that keep the lowest value", () => {
  const column = numbers("x", [5, 3, Number.NaN, Number.NaN, 7, 9]);
  assert.deepEqual(buckets(column, 6, 3), [{ low: 3, high: 5, row: 1 }, null, { low: 7, high: 9, row: 4 }]);
  assert.equal(buckets(column, 6, 100).length, 6);
});
