import assert from "node:assert/strict";
import { test } from "node:test";
import { colorOf, makeScale, scaleOf } from "../src/scale.ts";
import { numbers } from "./tables.ts";

test("higher is better: normal from 25 up, worst at the bottom", () => {
  const scale = makeScale({ name: "sqnr", better: "higher", normal: [25, null] }, [5, 15, 25, 40])!;
  assert.deepEqual(scale.ends, [25, 5]);
  assert.deepEqual([60, 25, 15, 5, 0].map(scale.level), [0, 0, 0.5, 1, 1]);
  assert.ok(Number.isNaN(scale.level(Number.NaN)));
});

test("lower is better, over several powers of ten: logarithmic", () => {
  const scale = makeScale({ name: "ratio", better: "lower", normal: [1, 16] }, [1, 2, 16_000])!;
  assert.equal(scale.level(16), 0);
  assert.ok(Math.abs(scale.level(16 * Math.sqrt(1000)) - 0.5) < 1e-9);
  assert.equal(scale.level(16_000), 1);
});

test("without a normal range the best value of the column is the start", () => {
  const scale = makeScale({ name: "mse", better: "lower" }, [1, 2, 3])!;
  assert.equal(scale.normal, false);
  assert.deepEqual([1, 2, 3].map(scale.level), [0, 0.5, 1]);
});

test("everything normal: no color anywhere", () => {
  const scale = makeScale({ name: "sqnr", better: "higher", normal: [25, null] }, [30, 40])!;
  assert.deepEqual(
    [30, 40].map((value) => colorOf(scale.level(value))),
    ["transparent", "transparent"],
  );
  assert.deepEqual(scale.ends, [25, 25]);
});

test("columns that are neither good nor bad have no scale", () => {
  assert.equal(makeScale({ name: "index" }, [1, 2]), null);
  assert.equal(makeScale({ name: "x", better: "lower" }, []), null);
});

test("worse is more opaque and redder", () => {
  assert.equal(colorOf(0.5), "hsl(26 90% 50% / 0.380)");
  assert.equal(colorOf(1), "hsl(4 90% 50% / 0.580)");
});

test("a single value outside the normal range is the worst end, not left out as an outlier", () => {
  const values = [8, ...Array(999).fill(40)];
  const scale = makeScale({ name: "sqnr", better: "higher", normal: [25, null] }, values)!;
  assert.deepEqual(scale.ends, [25, 8]);
  assert.equal(scale.level(8), 1);
  assert.equal(scale.level(40), 0);
});

test("one bad op among 20,000 is an end of the scale", () => {
  const values = Array.from({ length: 20_000 }, (_, i) => (i === 4321 ? 8 : 40));
  const column = numbers("sqnr", values, { better: "higher", normal: [25, null] });
  assert.deepEqual(column.kind === "number" && scaleOf(column)?.ends, [25, 8]);
});
