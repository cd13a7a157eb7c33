import assert from "node:assert/strict";
import { test } from "node:test";
import type { ProfileRow } from "../src/records.ts";
import { colorIndex, inSight, lanesOf, moved, spanAt, wholeOf, zoomed } from "../src/timeline.ts";

const ROWS: ProfileRow[] = [
  {
    op: "b",
    type: "Conv",
    spans: [
      ["int8", 0, 10, 5],
      ["fp32", 1, 20, 30],
    ],
  },
  { op: "a", type: "Relu", spans: [["int8", 0, 0, 8]] },
  {
    op: "c",
    type: "Add",
    spans: [
      ["int8", 0, 40, 1],
      ["fp32", 0, 5, 10],
    ],
  },
  { op: "none", type: "Mul" },
];
const WHOLE = { from: 0, to: 100 };

test("a lane for each model and thread, spans by their start", () => {
  const lanes = lanesOf(ROWS);
  assert.deepEqual(
    lanes.map(({ model, thread }) => `${model} ${thread}`),
    ["fp32 0", "fp32 1", "int8 0"],
  );
  const int8 = lanes[2]!;
  assert.deepEqual(
    [[...int8.starts], [...int8.durations], [...int8.rows]],
    [
      [0, 10, 40],
      [8, 5, 1],
      [1, 0, 2],
    ],
  );
  assert.equal(int8.longest, 8);
  assert.deepEqual(wholeOf(lanes), { from: 0, to: 50 });
  assert.deepEqual(wholeOf([]), { from: 0, to: 1 });
});

test("spans in sight include those that began before", () => {
  const int8 = lanesOf(ROWS)[2]!;
  assert.deepEqual(inSight(int8, { from: 7, to: 10 }), [0, 1]);
  assert.deepEqual(inSight(int8, { from: 20, to: 100 }), [2, 3]);
});

test("the span under the pointer, or the nearest within reach", () => {
  const int8 = lanesOf(ROWS)[2]!;
  assert.equal(spanAt(int8, 12, 0), 1);
  assert.equal(spanAt(int8, 8.5, 1), 0);
  assert.equal(spanAt(int8, 9.5, 1), 1);
  assert.equal(spanAt(int8, 25, 2), -1);
});

test("zooming keeps the time under the pointer in its place", () => {
  assert.deepEqual(zoomed({ from: 0, to: 100 }, 25, 0.5, WHOLE), { from: 12.5, to: 62.5 });
  assert.deepEqual(zoomed({ from: 50, to: 60 }, 50, 100, WHOLE), WHOLE);
  const closest = zoomed({ from: 50, to: 50.06 }, 50, 0.01, WHOLE);
  assert.ok(Math.abs(closest.to - closest.from - 0.05) < 1e-9);
});

test("moving stops at the ends", () => {
  assert.deepEqual(moved({ from: 10, to: 30 }, 20, WHOLE), { from: 30, to: 50 });
  assert.deepEqual(moved({ from: 10, to: 30 }, -20, WHOLE), { from: 0, to: 20 });
  assert.deepEqual(moved({ from: 70, to: 90 }, 20, WHOLE), { from: 80, to: 100 });
});

test("types with most time get the first colors, the others share one", () => {
  assert.deepEqual(
    [...colorIndex(ROWS, 2)],
    [
      ["Conv", 0],
      ["Add", 1],
      ["Relu", 2],
    ],
  );
  assert.deepEqual(
    [...colorIndex(ROWS, 1)],
    [
      ["Conv", 0],
      ["Add", 1],
      ["Relu", 1],
    ],
  );
});
