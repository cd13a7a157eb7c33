import assert from "node:assert/strict";
import { test } from "node:test";
import {
  aligned,
  bestSoFar,
  type Config,
  changedConfig,
  changesOf,
  describeChange,
  difference,
  drop,
  largestDifference,
  paretoFront,
  picked,
  runColumn,
  shortChange,
  spanOf,
  targetMet,
  unionOfOps,
  usableSort,
} from "../src/compare.ts";
import { textColumn } from "../src/records.ts";

const { NaN: none } = Number;
const trial = (accuracy: number | null, more = {}) => ({ name: "t", accuracy, ...more });

test("a drop is positive when the trial is worse than the baseline", () => {
  // 0.8 - 0.6 = 0.2, which is a quarter of 0.8
  const lost = drop(trial(0.6, { baseline: 0.8 }))!;
  assert.ok(Math.abs(lost.absolute - 0.2) < 1e-12);
  assert.ok(Math.abs(lost.relative - 0.25) < 1e-12);
  assert.ok(drop(trial(0.9, { baseline: 0.8 }))!.absolute < 0);
});

test("a loss that rises is a drop", () => {
  // 2.5 - 2.0 = 0.5, a quarter of 2
  assert.deepEqual(drop(trial(2.5, { baseline: 2, lower_is_better: true })), { absolute: 0.5, relative: 0.25 });
});

test("a drop needs both numbers, and has no share of a baseline of zero", () => {
  assert.equal(drop(trial(null, { baseline: 1 })), null);
  assert.equal(drop(trial(1)), null);
  assert.deepEqual(drop(trial(1, { baseline: 0 })), { absolute: -1, relative: none });
});

test("the target is met when it is reached, from the side that is better", () => {
  assert.equal(targetMet(trial(0.5, { target: 0.5 })), true);
  assert.equal(targetMet(trial(0.49, { target: 0.5 })), false);
  assert.equal(targetMet(trial(0.49, { target: 0.5, lower_is_better: true })), true);
  assert.equal(targetMet(trial(0.51, { target: 0.5, lower_is_better: true })), false);
  assert.equal(targetMet(trial(0.5)), null);
});

test("best so far never gets worse and skips trials without accuracy", () => {
  const found = bestSoFar([trial(0.5), null, trial(0.4), trial(null), trial(0.6), trial(0.6)]);
  assert.deepEqual(
    found.map((best) => best?.value),
    [0.5, undefined, 0.5, undefined, 0.6, 0.6],
  );
  assert.deepEqual(
    found.map((best) => best?.isNew),
    [true, undefined, false, undefined, true, false],
  );
});

test("best so far of losses is the lowest, and losses are kept apart from accuracies", () => {
  const loss = { lower_is_better: true };
  const found = bestSoFar([trial(3, loss), trial(0.9), trial(2, loss), trial(0.8), trial(5, loss)]);
  assert.deepEqual(
    found.map((best) => best?.value),
    [3, 0.9, 2, 0.9, 2],
  );
});

test("the Pareto front follows the directions of both axes", () => {
  //        a         b         c         d (worse than b in both)
  const points = [
    { x: 1, y: 1 },
    { x: 2, y: 3 },
    { x: 4, y: 4 },
    { x: 3, y: 2 },
  ];
  assert.deepEqual(paretoFront(points, true, false), [0, 1, 2]); // low x, high y
  assert.deepEqual(paretoFront(points, true, true), [0]); // low x, low y: a beats all
  assert.deepEqual(paretoFront(points, false, false), [2]); // high x, high y: c beats all
  assert.deepEqual(paretoFront(points, false, true), [2, 3, 0]); // high x, low y: b loses to d
});

test("equal points are on the front together; a point of the same x but worse y, or without a value, is not", () => {
  const points = [
    { x: 1, y: 5 },
    { x: 1, y: 5 },
    { x: 1, y: 4 },
    { x: 2, y: 5 },
    { x: none, y: 9 },
  ];
  assert.deepEqual(paretoFront(points, true, false), [0, 1]);
  assert.deepEqual(paretoFront([], true, false), []);
});

test("the union keeps the base's order and puts other ops after their predecessors", () => {
  const { names, rows } = unionOfOps([
    ["a", "b", "c"],
    ["first", "a", "b", "b2", "b3", "c"],
    ["c", "a"],
  ]);
  assert.deepEqual(names, ["first", "a", "b", "b2", "b3", "c"]);
  assert.deepEqual([...rows[0]!], [-1, 0, 1, -1, -1, 2]);
  assert.deepEqual([...rows[1]!], [0, 1, 2, 3, 4, 5]);
  assert.deepEqual([...rows[2]!], [-1, 1, -1, -1, -1, 0]);
});

test("a run without ops is in the union with no rows", () => {
  const { names, rows } = unionOfOps([[], ["a"]]);
  assert.deepEqual(names, ["a"]);
  assert.deepEqual([...rows[0]!], [-1]);
});

test("20,000 ops of 20 runs are united and subtracted", () => {
  const ops = Array.from({ length: 20_000 }, (_, i) => `/encoder/layer.${i}/attention/qkv/MatMul`);
  const { names, rows } = unionOfOps(Array(20).fill(ops));
  assert.deepEqual(names, ops);
  const values = rows.map((one, run) => aligned(new Float64Array(20_000).fill(run), one));
  const found = values.map((one) => difference(one, values[0]!));
  assert.deepEqual(
    found.map((one) => [one.length, one.at(-1)]),
    rows.map((_, run) => [20_000, run]),
  );
});

test("values follow the union; a difference with a missing side is missing", () => {
  const base = aligned([10, 20], Int32Array.of(0, 1, -1));
  const other = aligned([5, 7], Int32Array.of(1, -1, 0));
  assert.deepEqual([...base], [10, 20, none]);
  assert.deepEqual([...other], [7, none, 5]);
  assert.deepEqual([...difference(other, base)], [-3, none, none]);
});

test("the largest difference keeps its sign; a value that a changed config took away counts as the largest", () => {
  const values = [
    Float64Array.of(10, 10, 10, none),
    Float64Array.of(12, none, none, none),
    Float64Array.of(5, 11, 10, none),
  ];
  const changed = [null, Uint8Array.of(0, 1, 0, 0), null];
  assert.deepEqual([...largestDifference(values, changed)], [-5, Number.POSITIVE_INFINITY, 0, none]);
  assert.deepEqual([...largestDifference([], [])], []);
});

test("a config changed where the texts differ, whatever their codes are", () => {
  const base = textColumn({ name: "act_dtype" }, ["uint8", "int8", "int8"]);
  const other = textColumn({ name: "act_dtype" }, ["", "int8", "uint8", "int16"]);
  // The union's rows: base 0, 1, 2 and none; other 2, 0, 1 and 3.
  const found = changedConfig(base, Int32Array.of(0, 1, 2, -1), other, Int32Array.of(2, 0, 1, 3));
  assert.deepEqual([...found], [0, 1, 0, 0]);
});

test("a change is told in few words", () => {
  const int8 = { weight_dtype: "int8", weight_granularity: "per tensor", act_dtype: "int8", act_scheme: "asymmetric" };
  const fp32 = { weight_dtype: "", weight_granularity: "", act_dtype: "", act_scheme: "" };
  const told = (before: Config, after: Config) => changesOf(before, after).map(describeChange);
  assert.deepEqual(told(int8, fp32), ["int8 → fp32"]);
  assert.deepEqual(told(fp32, int8), ["fp32 → int8"]);
  assert.deepEqual(told(int8, { ...int8, act_dtype: "uint8" }), ["activations int8 → uint8"]);
  assert.deepEqual(told(int8, { ...int8, weight_granularity: "per channel", act_scheme: "symmetric" }), [
    "weights per tensor → per channel",
    "activations asymmetric → symmetric",
  ]);
  assert.deepEqual(told(int8, int8), []);
  assert.deepEqual(changesOf(int8, { ...int8, weight_granularity: "per channel" }).map(shortChange), [
    "weights → per channel",
  ]);
  assert.deepEqual(changesOf(int8, fp32).map(shortChange), ["int8 → fp32"]);
});

test("the span leaves out what is not a number and the odd one out", () => {
  // 0 to 99 and one million, both ends counted twice: of 103 values the 98th percentile is at place 99
  const usual = Float64Array.from({ length: 101 }, (_, i) => (i === 100 ? 1e6 : -i));
  assert.equal(spanOf([usual]), 99);
  assert.equal(spanOf([Float64Array.of(none, 0, 0, 2)]), 2);
  assert.equal(spanOf([Float64Array.of(none, -1, Number.POSITIVE_INFINITY)]), 1);
  assert.equal(spanOf([]), 0);
});

test("runs to compare keep their order, and too many are refused", () => {
  assert.deepEqual(picked(["b", "a"], new Set(["a", "b", "c"]), 3), ["b", "a", "c"]);
  assert.deepEqual(picked(["b", "a"], new Set(["a"]), 3), ["a"]);
  assert.equal(picked(["a", "b", "c"], new Set(["a", "b", "c", "d"]), 3), null);
  // a heat map may have more than can be ticked; each can be left out again
  assert.deepEqual(picked(["a", "b", "c", "d"], new Set(["a", "b", "d"]), 2), ["a", "b", "d"]);
});

test("rows are sorted by a run's name, and as usual when that run is not compared", () => {
  const usual = [{ column: "largest", descending: true }];
  const byRun = { column: runColumn("trial-2"), descending: false };
  const byName = { column: "name", descending: false };
  assert.deepEqual(usableSort([byRun], ["trial-1", "trial-2"], usual), [byRun]);
  assert.deepEqual(usableSort([byRun], ["trial-2", "trial-1"], usual), [byRun]);
  assert.equal(usableSort([byRun], ["trial-1"], usual), usual);
  assert.deepEqual(usableSort([byRun, byName], ["trial-1"], usual), [byName]);
  assert.equal(usableSort([{ column: "1", descending: false }], ["trial-1", "trial-2"], usual), usual); // older links
  assert.deepEqual(usableSort([], ["trial-1"], usual), []); // as in the graph
  assert.equal(runColumn("a,-b"), "run:a%2C-b");
});
