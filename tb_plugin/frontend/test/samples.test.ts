import assert from "node:assert/strict";
import { test } from "node:test";
import { decibels, floats, ofOp, outline, sqnrs, summaryOf, worstSamples } from "../src/samples.ts";

function stored(values: number[]): string {
  return Buffer.from(Float32Array.from(values).buffer).toString("base64");
}

// signal to noise 10, 20, none of it, unknown, and not finite: 10 log10 of 10 / 1, 100 / 1, and so on
const ROW = { op: "/fc", power: stored([10, 100, 5, 0, 7]), error: stored([1, 1, 0, 0, Number.POSITIVE_INFINITY]) };

test("numbers come back as they were stored", () => {
  assert.deepEqual([...floats(stored([0.5, -2]))], [0.5, -2]);
  assert.deepEqual([...floats("")], []);
});

test("the worst sample first, by what is off for its size; those that cannot be compared last", () => {
  assert.deepEqual(
    worstSamples(ROW).map(({ index }) => index),
    [4, 0, 1, 2, 3],
  );
  const found = sqnrs(floats(ROW.power), floats(ROW.error));
  assert.deepEqual([...found], [10, 20, Number.POSITIVE_INFINITY, Number.NaN, Number.NEGATIVE_INFINITY]);
  assert.deepEqual([...found].map(decibels), ["10.0 dB", "20.0 dB", "no error", "–", "not finite"]);
});

test("what an op adds, and where that is not known all that it has", () => {
  assert.deepEqual(ofOp(ROW).isAdded, false);
  const added = ofOp({ ...ROW, added: stored([0.1, 1, 0, 0, 7]) });
  assert.deepEqual([added.isAdded, added.sqnrDb[1], added.sqnrDb[4]], [true, 20, 0]);
});

test("whether a few samples break or all suffer alike", () => {
  // of ten samples the one with most error has 91 of 100; for its size it is the worst as well
  const error = [91, ...Array(9).fill(1)];
  const samples = worstSamples({ op: "a", power: stored(Array(10).fill(100)), error: stored(error) });
  assert.equal(samples[0]!.share, 0.91);
  assert.equal(
    summaryOf(samples),
    "The tenth of the samples with the most error has 91 % of it; the worst has 0.4 dB, the median 20.0 dB.",
  );
  assert.equal(summaryOf([]), "No sample could be compared.");
});

test("the outline of a sound is pairs of shares", () => {
  assert.deepEqual(outline(btoa(String.fromCharCode(0x81, 0, 0, 127))), [
    { low: -1, high: 0 },
    { low: 0, high: 1 },
  ]);
});
