import assert from "node:assert/strict";
import { test } from "node:test";
import type { ColumnSpec } from "../src/records.ts";
import { colorOf, makeScale, scaleOf } from "../src/scale.ts";
import { numbers } from "./tables.ts";

test("higher is better: normal from 25 up, worst at the bottom", () => {
  const scale = makeScale({ name: "sqnr", unit: "dB", better: "higher", normal: [25, null] }, [5, 15, 25, 40])!;
  assert.deepEqual(scale.ends, [25, 0]);
  assert.deepEqual([60, 25, 15, 5, 0, -9].map(scale.level), [0, 0, 0.4, 0.8, 1, 1]);
  assert.ok(Number.isNaN(scale.level(Number.NaN)));
});

test("lower is better: logarithmic, up to a hundred times what is normal", () => {
  const scale = makeScale({ name: "ratio", better: "lower", normal: [1, 16] }, [1, 2])!;
  assert.equal(scale.level(16), 0);
  assert.ok(Math.abs(scale.level(160) - 0.5) < 1e-9);
  assert.equal(scale.level(1600), 1);
  assert.equal(scale.level(16_000), 1);
});

test("a share, or an effect on the output, ends at 1", () => {
  const scale = makeScale({ name: "clipped", unit: "share", better: "lower", normal: [0, 0.01] }, [0])!;
  assert.deepEqual([0, 0.01, 0.1, 1].map(scale.level), [0, 0, 0.5, 1]);
});

test("of a likeness counts what is missing to 1", () => {
  const scale = makeScale({ name: "cosine", better: "higher", normal: [0.99, 1] }, [1])!;
  assert.deepEqual([1, 0.99].map(scale.level), [0, 0]);
  assert.ok(Math.abs(scale.level(0.9) - 0.5) < 1e-9);
  assert.deepEqual([0, -0.5].map(scale.level), [1, 1]);
});

test("colors are the same in every run: what else is there changes nothing", () => {
  const spec: ColumnSpec = { name: "sqnr", unit: "dB", better: "higher", normal: [25, null] };
  const colors = [[24], [24, 3], [24, 40, -20]].map((known) => makeScale(spec, known)!.color(24));
  assert.deepEqual(new Set(colors).size, 1);
  assert.match(colors[0]!, /^hsl\(46 90%/);
});

test("what was inherited accuses nobody: gray", () => {
  const scale = makeScale({ name: "arrived_sqnr_db", unit: "dB", better: "higher", normal: [25, null] }, [3])!;
  assert.equal(scale.inherited, true);
  assert.match(scale.color(3), /^hsl\(215 8%/);
  assert.equal(makeScale({ name: "a_sqnr_db", better: "higher" }, [3])!.inherited, true);
  assert.equal(makeScale({ name: "a_clipped", better: "lower" }, [3])!.inherited, false);
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
  assert.deepEqual(scale.ends, [25, 0.25]);
});

test("columns that are neither good nor bad have no scale", () => {
  assert.equal(makeScale({ name: "index" }, [1, 2]), null);
  assert.equal(makeScale({ name: "x", better: "lower" }, []), null);
});

test("worse is more opaque and redder", () => {
  assert.equal(colorOf(0.5), "hsl(26 90% 50% / 0.380)");
  assert.equal(colorOf(1), "hsl(4 90% 50% / 0.580)");
});

test("without a normal range a single bad value is the worst end, not left out as an outlier", () => {
  const values = [8, ...Array(999).fill(40)];
  const scale = makeScale({ name: "sqnr", better: "higher" }, values)!;
  assert.deepEqual(scale.ends, [40, 8]);
  assert.equal(scale.level(8), 1);
  assert.equal(scale.level(40), 0);
});

test("one bad op among 20,000 is an end of the scale", () => {
  const values = Array.from({ length: 20_000 }, (_, i) => (i === 4321 ? 8 : 40));
  const column = numbers("sqnr", values, { better: "higher" });
  assert.deepEqual(column.kind === "number" && scaleOf(column)?.ends, [40, 8]);
});
