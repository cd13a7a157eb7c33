import assert from "node:assert/strict";
import { test } from "node:test";
import { entries, entryColumns, timeOf, totals } from "../src/profile.ts";
import type { ProfileRow } from "../src/records.ts";

// int8 with conversion: conv 40 + 10 = 50, relu 20, add 10, rest 20; 100 µs in all.
const ROWS: ProfileRow[] = [
  { op: "relu", type: "Relu", fp32_us: 30, int8_us: 20, differs: false },
  {
    op: "conv",
    type: "Conv",
    fp32_us: 100,
    int8_us: 40,
    convert_us: 10,
    fp32_p95_us: 120,
    int8_p95_us: 44,
    differs: true,
  },
  { op: "add", type: "Relu", fp32_us: 20, int8_us: 10 },
  { op: "", fp32_us: 10, int8_us: 20 },
];

test("speed-up counts the conversion, shares are of all int8 time", () => {
  const [relu, conv, add, rest] = entries(ROWS, "op");
  assert.equal(conv!.speedup, 2);
  assert.equal(conv!.share, 0.5);
  assert.deepEqual([relu!.share, add!.share, rest!.share], [0.2, 0.1, 0.2]);
  assert.deepEqual([conv!.differs, relu!.differs, add!.differs], [true, false, null]);
});

test("the cumulative share goes from the slowest on, whatever the order of the rows", () => {
  const found = entries(ROWS, "op");
  assert.deepEqual(
    found.map(({ cumulative }) => cumulative.toFixed(2)),
    ["0.70", "0.50", "1.00", "0.90"],
  );
});

test("types are sums with counts, and the rest stays apart", () => {
  const found = entries(ROWS, "type", (op) => ({ relu: 30, add: 12 })[op] ?? Number.NaN);
  assert.deepEqual(
    found.map(({ name, count, fp32 }) => [name, count, fp32]),
    [
      ["Relu", 2, 50],
      ["Conv", 1, 100],
      ["", 0, 10],
    ],
  );
  assert.deepEqual([timeOf(found[0]!), found[0]!.share.toFixed(2), found[0]!.addedDb], [30, "0.30", 12]);
  assert.equal(found[0]!.differs, null);
  assert.ok(Number.isNaN(found[1]!.addedDb) && Number.isNaN(found[1]!.fp32P95));
});

test("an op that is in one model only has no speed-up", () => {
  const [gone, fresh] = entries(
    [
      { op: "gone", fp32_us: 5 },
      { op: "fresh", int8_us: null, convert_us: 4 },
    ],
    "op",
  );
  assert.ok(Number.isNaN(gone!.speedup));
  assert.equal(timeOf(gone!), 0);
  assert.deepEqual([timeOf(fresh!), fresh!.share], [4, 1]);
});

test("no time at all gives no shares", () => {
  assert.ok(Number.isNaN(entries([{ op: "a" }], "op")[0]!.share));
  assert.deepEqual(entries([], "type"), []);
});

test("totals are measured where they were, and sums otherwise", () => {
  const found = totals(ROWS, { fp32_total_us: 150, int8_total_us: 75 });
  assert.deepEqual([found.fp32, found.int8, found.speedup], [150, 75, 2]);
  assert.deepEqual([found.fp32Sum, found.int8Sum, found.convert, found.convertShare], [160, 100, 10, 0.1]);
  assert.deepEqual([found.restFp32, found.restInt8], [10, 20]);
  assert.deepEqual([totals(ROWS, {}).fp32, totals(ROWS, {}).int8], [160, 100]);
});

test("columns can be sorted as those of the op table", () => {
  const columns = entryColumns(entries(ROWS, "op"));
  const names = columns.get("name")!;
  assert.deepEqual(names.kind === "text" && [...names.codes], [3, 2, 1, 0]);
  const time = columns.get("time")!;
  assert.deepEqual(time.kind === "number" && [...time.values], [20, 50, 10, 20]);
});
