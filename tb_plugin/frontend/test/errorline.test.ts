import assert from "node:assert/strict";
import { test } from "node:test";
import { buckets, jumps, NO_ERROR_ARRIVED } from "../src/errorline.ts";
import { numbers, table } from "./tables.ts";

test("a jump is where much more error leaves than arrives, the largest first", () => {
  const columns = table(
    numbers("arrived_sqnr_db", [50, 30, 20, Number.NaN, 60, 22]),
    numbers("total_sqnr_db", [49, 10, 8, 5, 40, 2]),
    numbers("added_sqnr_db", [50, 17, 9, 5, 24, 38]),
  );
  // row 0 loses 1 dB, row 1 20, row 2 12; row 3 has nothing to compare with; row 4 loses 20 but is healthy at 40;
  // row 5 adds nothing itself: one of its inputs was bad already
  assert.deepEqual(jumps(columns, 6), [
    { row: 1, arrived: 30, total: 10 },
    { row: 2, arrived: 20, total: 8 },
  ]);
  assert.equal(jumps(columns, 6, 1).length, 1);
});

test("the first op that is quantized may be the culprit: no error arrives there", () => {
  const arrived = numbers("arrived_sqnr_db", [Number.NaN, Number.NaN, 12], {
    nulls: { [NO_ERROR_ARRIVED]: [[0, 1]], "nothing that is compared reaches this op": [[1, 2]] },
  });
  const columns = table(arrived, numbers("total_sqnr_db", [10, 9, 8]), numbers("added_sqnr_db", [10, 9, 40]));
  assert.deepEqual(jumps(columns, 3), [{ row: 0, arrived: Number.POSITIVE_INFINITY, total: 10 }]);
});

test("many rows become few buckets that keep the lowest value", () => {
  const column = numbers("x", [5, 3, Number.NaN, Number.NaN, 7, 9]);
  assert.deepEqual(buckets(column, 6, 3), [{ low: 3, high: 5, row: 1 }, null, { low: 7, high: 9, row: 4 }]);
  assert.equal(buckets(column, 6, 100).length, 6);
});
