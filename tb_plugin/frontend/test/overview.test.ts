import assert from "node:assert/strict";
import { test } from "node:test";
import { headlineOf, scoresOf } from "../src/overview.ts";
import type { Trial } from "../src/records.ts";

const OUTPUT = { op: "/fc", sqnrDb: 5.3, normalDb: 25 };
const trial = (more: Partial<Trial>): Trial => ({ name: "t", accuracy: 0.6, baseline: 0.8, ...more });

test("what was lost, by the accuracy where there is one", () => {
  const said = (more: Partial<Trial>) => headlineOf(trial(more), OUTPUT);
  assert.deepEqual(said({}), {
    tone: "bad",
    text: "Quantizing cost 0.2000 of accuracy (25 %): 0.6000 instead of 0.8000",
  });
  assert.deepEqual(said({ accuracy: 0.796, target: 0.79 }), {
    tone: "good",
    text: "Meets its target: accuracy 0.7960, at least 0.7900 was asked for",
  });
  assert.equal(said({ accuracy: 0.795 }).tone, "good"); // 0.6 %, where nobody has said how much is too much
  assert.equal(said({ accuracy: 0.795, target: 0.799 }).tone, "bad");
  assert.deepEqual(said({ accuracy: 0.81 }), {
    tone: "good",
    text: "As good as fp32: accuracy 0.8100, fp32 has 0.8000",
  });
  assert.deepEqual(said({ accuracy: 2.5, baseline: 2, lower_is_better: true }), {
    tone: "bad",
    text: "Quantizing raised the loss by 0.5000 (25 %): 2.5000 instead of 2.0000",
  });
  assert.equal(said({ baseline: null, target: 0.7 }).text, "Misses its target: accuracy 0.6000, 0.7000 was asked for");
});

test("else by the error of the output; nothing is said that was not measured", () => {
  assert.deepEqual(headlineOf(null, OUTPUT), {
    tone: "bad",
    text: "The output is off: 5.3 dB signal to noise at /fc, over 25 is usual",
  });
  assert.equal(headlineOf(trial({ accuracy: null }), { ...OUTPUT, sqnrDb: 31 }).tone, "good");
  // an accuracy alone says nothing of what was lost
  assert.equal(headlineOf(trial({ baseline: null }), OUTPUT).text.startsWith("The output is off"), true);
  assert.equal(headlineOf(null, { ...OUTPUT, sqnrDb: Number.NaN }).tone, "unknown");
});

test("the best is looked for among the trials of the same model", () => {
  const runs = [
    { run: "a", trial: trial({ accuracy: 0.6 }), error: "" },
    { run: "b", trial: trial({ accuracy: 0.79 }), error: "" },
    { run: "other", trial: trial({ accuracy: 0.99, baseline: 0.999 }), error: "" },
    { run: "untried", trial: null, error: "" },
  ];
  assert.deepEqual(scoresOf(runs, "a"), {
    fp32: 0.8,
    here: 0.6,
    target: Number.NaN,
    best: { run: "b", accuracy: 0.79 },
    lower: false,
  });
  assert.equal(scoresOf(runs, "untried").best, null);
  const losses = runs.map((one) => ({ ...one, trial: one.trial && { ...one.trial, lower_is_better: true } }));
  assert.equal(scoresOf(losses, "b").best?.run, "a");
});
