import assert from "node:assert/strict";
import { test } from "node:test";
import {
  differenceText,
  entries,
  entryColumns,
  fusedText,
  intervalText,
  modelsOf,
  outcome,
  rowWith,
  totals,
} from "../src/profile.ts";
import type { Meta, ProfileRow } from "../src/records.ts";

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
  assert.deepEqual([found[0]!.time, found[0]!.share.toFixed(2), found[0]!.addedDb], [30, "0.30", 12]);
  assert.deepEqual(
    found.map(({ convert, time, difference }) => [convert, time, difference]),
    [
      [0, 30, -20],
      [10, 50, -50],
      [0, 20, 10],
    ],
  );
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
  assert.ok(Number.isNaN(gone!.speedup) && Number.isNaN(gone!.difference));
  assert.equal(gone!.time, 0);
  assert.deepEqual([fresh!.time, fresh!.share], [4, 1]);
});

test("with one model alone, everything is of that one", () => {
  const fp32: ProfileRow[] = ROWS.map(({ op, type = "", fp32_us }) => ({ op, type, fp32_us: fp32_us! }));
  const int8: ProfileRow[] = ROWS.map(({ fp32_us, ...rest }) => rest);
  assert.deepEqual([modelsOf(ROWS), modelsOf(fp32), modelsOf(int8)], [["fp32", "int8"], ["fp32"], ["int8"]]);
  const [relu, conv] = entries(fp32, "op");
  assert.deepEqual([conv!.time, conv!.share, conv!.cumulative], [100, 100 / 160, 100 / 160]);
  assert.deepEqual([relu!.time, relu!.cumulative, relu!.convert], [30, 130 / 160, 0]);
  assert.ok(Number.isNaN(conv!.difference) && Number.isNaN(conv!.speedup));
  assert.equal(entries(fp32, "type")[0]!.share, 50 / 160);
  assert.equal(entries(int8, "op")[1]!.share, 0.5);
  const found = totals(fp32, { samples: 4 });
  assert.deepEqual(
    found.wholes.map(({ model, time, isMeasured, rest }) => [model, time, isMeasured, rest]),
    [["fp32", 160, false, 10]],
  );
  assert.ok(Number.isNaN(found.compared.difference) && Number.isNaN(found.wholes[0]!.perSecond));
  assert.deepEqual(
    totals(int8, {}).wholes.map(({ model, time }) => [model, time]),
    [["int8", 100]],
  );
});

test("an op of which only conversion is left, and a type of nothing else", () => {
  const rows: ProfileRow[] = [
    { op: "relu", type: "Relu", fp32_us: 8, convert_us: 4 },
    { op: "in", type: "QuantizeLinear", convert_us: 6 },
    { op: "out", type: "QuantizeLinear", convert_us: 10 },
  ];
  const [relu] = entries(rows, "op");
  assert.deepEqual([relu!.int8, relu!.time, relu!.speedup, relu!.difference], [Number.NaN, 4, 2, -4]);
  const [, quantize] = entries(rows, "type");
  assert.deepEqual([quantize!.int8, quantize!.convert, quantize!.time, quantize!.share], [Number.NaN, 16, 16, 0.8]);
});

test("no time at all gives no shares", () => {
  assert.ok(Number.isNaN(entries([{ op: "a" }], "op")[0]!.share));
  assert.deepEqual(entries([], "type"), []);
});

test("totals are measured where they were, and sums otherwise", () => {
  const total: ProfileRow = { op: "", fp32_us: 150, int8_us: 75, fp32_p95_us: 170, difference_us: -74, low_us: -80 };
  const meta: Meta = { fp32_total_us: 150, int8_total_us: 75, samples: 3, overhead: { int8: 0.2 }, total };
  const { wholes, ...both } = totals(ROWS, meta);
  const [fp32, int8] = wholes;
  assert.deepEqual([fp32!.time, fp32!.isMeasured, fp32!.p95, fp32!.perSecond], [150, true, 170, 20_000]);
  assert.deepEqual([int8!.time, int8!.p95, int8!.perSecond, int8!.overhead], [75, Number.NaN, 40_000, 0.2]);
  assert.deepEqual([fp32!.sum, int8!.sum, fp32!.rest, int8!.rest], [160, 100, 10, 20]);
  assert.deepEqual([both.speedup, both.compared.difference, both.compared.low], [2, -74, -80]);
  assert.deepEqual([both.convert, both.convertShare], [10, 0.1]);
  const summed = totals(ROWS, {});
  assert.deepEqual(
    summed.wholes.map(({ time, isMeasured }) => [time, isMeasured]),
    [
      [160, false],
      [100, false],
    ],
  );
  assert.deepEqual([summed.compared.difference, outcome(summed.compared)], [-60, "faster"]);
});

test("the difference as it was measured, else that of the medians", () => {
  const measured = { difference_us: -52, low_us: -60, high_us: -44, differs: true };
  const [known, relu, slow] = entries(
    [{ op: "conv", fp32_us: 100, int8_us: 40, convert_us: 10, ...measured }, ROWS[0]!, { ...ROWS[3]!, op: "slow" }],
    "op",
  );
  assert.deepEqual([differenceText(known!), outcome(known!)], ["−52 µs", "faster"]);
  assert.equal(intervalText(known!), "between −60 and −44 µs");
  assert.deepEqual([relu!.difference, intervalText(relu!), outcome(relu!)], [-10, "", "noise"]);
  assert.deepEqual([differenceText(slow!), outcome(slow!)], ["+10 µs", "slower"]);
});

test("fused ops are found in the row that they run in", () => {
  const rows: ProfileRow[] = [{ op: "conv", fp32_us: 1, ops: ["bn", "relu"] }, { op: "relu_1" }, { op: "" }];
  assert.deepEqual(
    ["conv", "relu", "relu_1", "gone", ""].map((op) => rowWith(rows, op)),
    [0, 0, 1, -1, -1],
  );
  assert.deepEqual(entries(rows, "op")[0]!.fused, ["bn", "relu"]);
  assert.equal(fusedText(["bn", "relu"]), "runs as one with bn, relu");
  assert.equal(fusedText([]), "");
});

test("columns can be sorted as those of the op table", () => {
  const columns = entryColumns(entries(ROWS, "op"));
  const names = columns.get("name")!;
  assert.deepEqual(names.kind === "text" && [...names.codes], [3, 2, 1, 0]);
  const time = columns.get("time")!;
  assert.deepEqual(time.kind === "number" && [...time.values], [20, 50, 10, 20]);
});
