// The verdict in tokens, by hand.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Tokens } from "../src/records.ts";
import { figures, tokenColor } from "../src/tokens.ts";

const TOKENS: Tokens = { kind: "causal", op: "head", count: 8, sequences: 2, kl: 0.5, same_top1: 0.75, same_top5: 1 };

test("of a masked model no perplexity is told", () => {
  const told = figures({ ...TOKENS, kind: "masked" });
  assert.deepEqual(
    told.map(({ label, value, interval }) => [label, value, interval]),
    [
      ["KL divergence", "0.5 nats", ""],
      ["Same first choice", "75 %", ""],
      ["Among the first five", "100 %", ""],
    ],
  );
});

test("intervals and perplexity", () => {
  const told = figures({
    ...TOKENS,
    nll_reference: Math.log(20),
    nll_quantized: Math.log(30),
    change_nll: Math.log(1.5),
    intervals: { kl: [0.25, 0.75], change_nll: [-0.1, 0.9] },
  });
  const byLabel = Object.fromEntries(told.map(({ label, value, interval }) => [label, [value, interval]]));
  assert.deepEqual(byLabel["KL divergence"], ["0.5 nats", "0.25 nats to 0.75 nats"]);
  assert.deepEqual(byLabel.Perplexity, ["20 → 30", ""]);
  assert.deepEqual(byLabel["Change a token"], ["0.4055 nats", "-0.1 nats to 0.9 nats"]);
});

test("colors are the same in every run", () => {
  assert.equal(tokenColor(null), "transparent");
  assert.equal(tokenColor(0.01), "transparent");
  assert.notEqual(tokenColor(0.02), "transparent");
  assert.equal(tokenColor(10), tokenColor(100)); // as red as can be
  assert.notEqual(tokenColor(0.1), tokenColor(1));
});
