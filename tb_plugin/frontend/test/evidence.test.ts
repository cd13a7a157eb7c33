import assert from "node:assert/strict";
import { test } from "node:test";
import { channelBars, chartOf, factsOf, standsOut } from "../src/evidence.ts";
import type { ChannelRow } from "../src/records.ts";

function channels(min: (number | null)[], max: (number | null)[], sqnr_db: (number | null)[] = []): ChannelRow {
  return { op: "a", role: "output", min, max, q_min: [], q_max: [], sqnr_db };
}

test("numbers get a label, a unit and a normal range", () => {
  const [low, ratio] = factsOf({ op: "a", added_sqnr_db: 3.5, channels: [1], channel_ratio: 2 });
  assert.deepEqual([low!.label, low!.unit, low!.normal, low!.odd], ["added SQNR", "dB", [25, null], true]);
  assert.deepEqual([ratio!.label, ratio!.odd], ["channel ratio", false]);
});

test("a number at the end of its normal range is normal", () => {
  assert.equal(factsOf({ added_sqnr_db: 25 })[0]!.odd, false);
  assert.equal(factsOf({ clipped: 0.001 })[0]!.odd, false);
  assert.equal(factsOf({ clipped: 0.0011 })[0]!.odd, true);
});

test("what is not known is shown plainly, what is missing is not shown", () => {
  const found = factsOf({ new_thing: 4, list: [1, 2], median_channel_sqnr_db: null });
  assert.deepEqual(
    found.map(({ label, value, unit, odd }) => [label, value, unit, odd]),
    [
      ["new thing", 4, "", false],
      ["list", "[1,2]", "", false],
    ],
  );
});

test("the chart is of the edge where it is known, and of weights where they are the reason", () => {
  const ops = ["a", "b", "c", "d"];
  const chart = (rule: string, evidence: Record<string, unknown>) => chartOf({ rule, evidence, ops });
  assert.deepEqual(chart("outlier_channels", { op: "b", edge: "a", channels: [1] }), { role: "output", ops: ["a"] });
  assert.deepEqual(chart("outlier_channels", { op: "b", channels: [1] }), { role: "output", ops: ["b", "a", "c"] });
  assert.deepEqual(chart("weights_per_tensor", { op: "b" }), { role: "weight", ops: ["b"] });
  assert.equal(chart("high_error", { op: "b" }), null);
  assert.equal(chart("outlier_channels", {}), null);
});

test("marked channels have to stand out more than 8 times", () => {
  const bars = (largest: number, marked: number[]) =>
    channelBars(channels([0, 0, 0], [1, 1, largest]), new Set(marked), 9)!;
  assert.equal(standsOut(bars(8, [2])), false);
  assert.equal(standsOut(bars(8.1, [2])), true);
  assert.equal(standsOut(bars(8.1, [0])), false);
  assert.equal(standsOut(bars(8.1, [0, 2])), true);
  assert.equal(standsOut(bars(1, [])), true);
});

test("a bar is the larger of |min| and |max|; the median leaves out channels that are zero", () => {
  const found = channelBars(channels([-4, 0, 0, -1], [1, 2, 0, 40], [10, null, 5, 3]), new Set([3]), 100);
  assert.deepEqual(
    found!.bars.map(({ reach }) => reach),
    [4, 2, 0, 40],
  );
  assert.deepEqual(
    found!.bars.map(({ marked }) => marked),
    [false, false, false, true],
  );
  assert.deepEqual([found!.median, found!.smallest, found!.largest, found!.count], [4, 2, 40, 4]);
  assert.deepEqual(found!.bars[1]!.sqnrDb, Number.NaN);
});

test("neighbours share a bar where there is no room; the largest and the worst are kept", () => {
  const found = channelBars(channels([0, 0, 0, 0], [1, 5, 2, 3], [10, 20, 30, 7]), new Set([1]), 2);
  assert.deepEqual(found!.bars, [
    { from: 0, to: 2, reach: 5, sqnrDb: 10, marked: true },
    { from: 2, to: 4, reach: 3, sqnrDb: 7, marked: false },
  ]);
  assert.equal(found!.median, 2.5);
});

test("nothing but zeros or unknown channels gives no picture", () => {
  assert.equal(channelBars(channels([0, null], [0, null]), new Set(), 10), null);
});
