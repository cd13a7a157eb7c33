import assert from "node:assert/strict";
import { test } from "node:test";
import { channelBars, chartsOf, factsOf, standsOut } from "../src/evidence.ts";
import type { ChannelRow, ColumnSpec } from "../src/records.ts";

function channels(min: (number | null)[], max: (number | null)[], sqnr_db: (number | null)[] = []): ChannelRow {
  return { op: "a", role: "output", min, max, q_min: [], q_max: [], sqnr_db };
}

const DESCRIBED: ColumnSpec[] = [
  { name: "op", type: "op" },
  { name: "edge", type: "op" },
  { name: "sqnr_db", label: "added SQNR", unit: "dB", normal: [25, null], help: "Signal to noise." },
  { name: "clipped", label: "clipped", unit: "share", normal: [null, 0.001] },
  { name: "place", type: "text", label: "layer" },
  { name: "loud", type: "output_channels" },
  { name: "heavy", type: "weight_channels" },
];

test("numbers and texts get what the log says about them; ops and channels are no facts", () => {
  const evidence = { op: "a", edge: "b", sqnr_db: 3.5, place: "head", loud: [1], heavy: [] };
  const help = "Signal to noise.";
  assert.deepEqual(factsOf(evidence, DESCRIBED), [
    { key: "sqnr_db", label: "added SQNR", value: 3.5, unit: "dB", normal: [25, null], help, odd: true },
    { key: "place", label: "layer", value: "head", unit: "", normal: null, help: "", odd: false },
  ]);
});

test("a number at the end of its normal range is normal", () => {
  const isOdd = (evidence: Record<string, number>) => factsOf(evidence, DESCRIBED)[0]!.odd;
  assert.deepEqual([isOdd({ sqnr_db: 25 }), isOdd({ sqnr_db: 24.9 })], [false, true]);
  assert.deepEqual([isOdd({ clipped: 0.001 }), isOdd({ clipped: 0.0011 })], [false, true]);
});

test("what is not described is shown plainly, what is missing is not shown", () => {
  for (const described of [DESCRIBED, [], undefined]) {
    const found = factsOf({ new_thing: 4, list: [1, 2], gone: null }, described);
    assert.deepEqual(
      found.map(({ label, value, unit, odd }) => [label, value, unit, odd]),
      [
        ["new thing", 4, "", false],
        ["list", "[1,2]", "", false],
      ],
    );
  }
});

test("charts are of the edge where one is named, else of the op, and of what the channels are of", () => {
  const charts = (evidence: Record<string, unknown>) => chartsOf({ evidence, ops: ["x", "y"] }, DESCRIBED);
  assert.deepEqual(charts({ op: "b", edge: "a", loud: [1] }), [{ role: "output", ops: ["a"], channels: [1] }]);
  assert.deepEqual(charts({ op: "b", loud: [] }), [{ role: "output", ops: ["b"], channels: [] }]);
  assert.deepEqual(charts({ op: "b", edge: null, heavy: [] }), [{ role: "weight", ops: ["b"], channels: [] }]);
  assert.deepEqual(
    charts({ op: "b", loud: [1], heavy: [2] }).map(({ role }) => role),
    ["output", "weight"],
  );
  assert.deepEqual(charts({ op: "b", sqnr_db: 1 }), []);
  assert.deepEqual(charts({ loud: [1] }), []);
  assert.deepEqual(chartsOf({ evidence: { op: "b", channels: [1] }, ops: [] }, [{ name: "op", type: "op" }]), []);
});

test("logs that describe no evidence have charts of their channels all the same", () => {
  const ops = ["a", "b", "c", "d"];
  const charts = (evidence: Record<string, unknown>) => chartsOf({ evidence, ops });
  assert.deepEqual(charts({ op: "b", edge: "a", channels: [1] }), [{ role: "output", ops: ["a"], channels: [1] }]);
  assert.deepEqual(charts({ op: "b", channels: [1] }), [{ role: "output", ops: ["b", "a", "c"], channels: [1] }]);
  assert.deepEqual(charts({ op: "b" }), []);
  assert.deepEqual(charts({ channels: [1] }), []);
  assert.deepEqual(
    factsOf({ op: "b", edge: "a", channels: [1], channel_ratio: 2 }).map(({ label }) => label),
    ["channel ratio"],
  );
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

test("neighbors share a bar where there is no room; the largest and the worst are kept", () => {
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
