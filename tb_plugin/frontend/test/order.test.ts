import assert from "node:assert/strict";
import { test } from "node:test";
import { filtered, matcher, nextSort, sorted } from "../src/order.ts";
import type { Filter } from "../src/state.ts";
import { numbers, table, texts } from "./tables.ts";

const columns = table(
  texts("name", ["/conv1/Conv", "/relu", "/conv2/Conv", "/fc"]),
  texts("type", ["Conv", "Relu", "Conv", "Gemm"]),
  texts("verdict", ["ok", "", "bad", "watch"]),
  numbers("added", [30, Number.NaN, 10, 10]),
  numbers("index", [0, 1, 2, 3]),
);
const everything: Filter = { text: "", regex: false, types: [], verdicts: [] };
const rows = (filter: Partial<Filter>) => [...filtered(4, { ...everything, ...filter }, columns)];
const order = (...keys: [string, boolean][]) => [
  ...sorted(
    filtered(4, everything, columns),
    keys.map(([column, descending]) => ({ column, descending })),
    columns,
  ),
];

test("all words must be in the name, or in the type", () => {
  assert.deepEqual(rows({ text: "CONV 2" }), [2]);
  assert.deepEqual(rows({ text: "gemm" }), [3]);
  assert.deepEqual(rows({ text: "" }), [0, 1, 2, 3]);
});

test("regular expressions; a wrong one says so and hides nothing", () => {
  assert.deepEqual(rows({ text: "conv[12]/", regex: true }), [0, 2]);
  assert.equal(typeof matcher({ text: "(", regex: true }), "string");
  assert.deepEqual(rows({ text: "(", regex: true }), [0, 1, 2, 3]);
});

test("types and verdicts", () => {
  assert.deepEqual(rows({ types: ["Conv"] }), [0, 2]);
  assert.deepEqual(rows({ types: ["Conv"], verdicts: ["bad"] }), [2]);
  assert.deepEqual(rows({ verdicts: ["bad", "watch"] }), [2, 3]);
});

test("rows without a value come last both ways; equal ones keep their order", () => {
  assert.deepEqual(order(["added", false]), [2, 3, 0, 1]);
  assert.deepEqual(order(["added", true]), [0, 2, 3, 1]);
});

test("several keys", () => {
  assert.deepEqual(order(["added", false], ["index", true]), [3, 2, 0, 1]);
});

test("verdicts from bad to ok, texts by the alphabet", () => {
  assert.deepEqual(order(["verdict", false]), [2, 3, 0, 1]);
  assert.deepEqual(order(["name", false]), [0, 2, 3, 1]);
});

test("a column that is not there sorts nothing", () => {
  assert.deepEqual(order(["gone", false]), [0, 1, 2, 3]);
});

test("clicks: worst first, the other way, unsorted", () => {
  const worst = nextSort([], "a", true, false);
  assert.deepEqual(worst, [{ column: "a", descending: false }]);
  const turned = nextSort(worst, "a", true, false);
  assert.deepEqual(turned, [{ column: "a", descending: true }]);
  assert.deepEqual(nextSort(turned, "a", true, false), []);
  assert.deepEqual(nextSort(turned, "b", false, false), [{ column: "b", descending: true }]);
});

test("clicks with Shift go beside the other keys", () => {
  const two = nextSort([{ column: "a", descending: false }], "b", true, true);
  assert.deepEqual(two, [
    { column: "a", descending: false },
    { column: "b", descending: false },
  ]);
  assert.deepEqual(nextSort(two, "a", true, true)[0], { column: "a", descending: true });
  assert.deepEqual(nextSort(nextSort(two, "a", true, true), "a", true, true), [{ column: "b", descending: false }]);
});

test("20,000 rows are sorted whole", () => {
  const many = table(
    numbers(
      "x",
      Array.from({ length: 20_000 }, (_, i) => Math.sin(i)),
    ),
  );
  const all = filtered(20_000, everything, many);
  const found = sorted(all, [{ column: "x", descending: false }], many);
  assert.equal(found.length, 20_000);
  assert.ok(found.every((row, i) => i === 0 || Math.sin(found[i - 1]!) <= Math.sin(row)));
});

test("many rows are in the same order by one number each as by comparing them pair by pair", () => {
  const count = 30_000;
  const random = (seed: number, kinds: number) =>
    Array.from({ length: count }, (_, i) => {
      const value = Math.floor(((Math.imul(i + seed, 2654435761) >>> 0) / 2 ** 32) * kinds);
      return value % 7 ? value / 3 - 1 : Number.NaN;
    });
  const many = table(...[1, 2, 3, 4].map((seed) => numbers(`c${seed}`, random(seed, 3 ** (2 * seed)))));
  const all = Uint32Array.from({ length: count }, (_, i) => i);
  // Three keys fit a number, four do not.
  for (const names of [["c4"], ["c1", "c2", "c3"], ["c1", "c4", "c3", "c2"]]) {
    const keys = names.map((column, i) => ({ column, descending: i % 2 === 0 }));
    const found = sorted(all, keys, many);
    assert.equal(new Set(found).size, count);
    for (let i = 1; i < count; i++) {
      const [a, b] = [found[i - 1]!, found[i]!];
      const first = keys
        .map(({ column, descending }) => {
          const { values } = many.get(column) as { values: Float64Array };
          const [x, y] = [values[a]!, values[b]!];
          if (Number.isNaN(x) || Number.isNaN(y)) return Number(Number.isNaN(x)) - Number(Number.isNaN(y));
          return descending ? y - x : x - y;
        })
        .find((difference) => difference !== 0);
      assert.ok((first ?? a - b) < 0);
    }
  }
});
