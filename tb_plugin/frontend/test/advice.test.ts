import assert from "node:assert/strict";
import { test } from "node:test";
import {
  actionOf,
  causes,
  curesNothing,
  effectsOf,
  entriesOf,
  firstTool,
  isAboutTime,
  reasonOf,
  signless,
  told,
} from "../src/advice.ts";
import type { Effect, Recipe, Suggestion } from "../src/records.ts";

function suggestion(ops: string[], more: Partial<Suggestion> = {}): Suggestion {
  return { ops, rule: "outlier_channels", because: "", evidence: {}, recipes: { keep: "" }, ...more };
}

function effect(more: Partial<Effect>): Effect {
  return { kind: "recovers", label: "less", value: 0.5, unit: "share", basis: "measured", how: "so", ...more };
}

const recipe = (label: string, item: string) =>
  ({ tool: "t", label, before: "", item, between: "", after: "" }) as Recipe;
const isSetting = (tool: string) => tool === "per-channel";

test("what one setting cures is one entry, at the place of its first; the others stay apart", () => {
  const setting = { recipes: { "per-channel": "", keep: "" } };
  const rows = [suggestion(["a"]), suggestion(["b", "c"], setting), suggestion(["d"]), suggestion(["c", "e"], setting)];
  const found = entriesOf(rows, isSetting);
  assert.deepEqual(
    found.map(({ rank, ops, suggestions }) => [rank, ops, suggestions.length]),
    [
      [1, ["a"], 1],
      [2, ["b", "c", "e"], 2],
      [3, ["d"], 1],
    ],
  );
  assert.equal(firstTool(rows[1]), "per-channel");
  assert.equal(firstTool(suggestion([], { recipes: {} })), "");
  // parts that overlap do not add up
  assert.deepEqual(effectsOf(found[1]!), []);
});

test("the action comes first, for the tool that is told", () => {
  const keep = recipe("Tool: names", "{name}");
  assert.equal(actionOf(["/conv1/Conv"], keep, "keep"), "Keep conv1/Conv in fp32");
  assert.equal(actionOf(["/a", "/b"], undefined, ""), "Keep a and b in fp32");
  assert.equal(actionOf(["/a", "/b", "/c"], keep, "keep"), "Keep a, b and c in fp32");
  assert.equal(actionOf(["/a", "/b", "/c", "/d"], keep, "keep"), "Keep a, b and 2 more ops in fp32");
  assert.equal(actionOf(["/a"], keep, "onnxruntime-int16"), "Give a 16 bits");
  assert.equal(actionOf(["/a"], recipe("Tool: a scale per channel", ""), "x"), "Use a scale per channel");
});

test("less that is below nothing is more", () => {
  const [worse, better, cost] = [-0.05, 0.05, -3].map((value) => effect({ what: "error", label: "less error", value }));
  assert.deepEqual(signless(worse as Effect), { label: "more error", value: 0.05 });
  assert.deepEqual(signless(better as Effect), { label: "less error", value: 0.05 });
  assert.deepEqual(signless({ ...(cost as Effect), what: "size", label: "larger weights" }), {
    label: "larger weights",
    value: -3,
  });
});

test("numbers in words, what it gives apart from what it takes; nothing is removed wholly", () => {
  const words = told([
    effect({ what: "error", value: 0.99945 }),
    effect({ what: "error", value: 1 }),
    effect({ what: "error", value: -0.2 }),
    effect({ what: "noise", value: 0.5, basis: "estimated" }),
    effect({ what: "time", value: 278, unit: "µs" }),
    effect({ kind: "costs", what: "time", value: 24.48, unit: "µs" }),
    effect({ kind: "costs", what: "size", value: 14_260, unit: "bytes", basis: "counted" }),
    effect({ kind: "costs", what: "ops", value: 2, unit: "count" }),
    effect({ label: "told by an older log", value: 3, unit: "" }),
  ]);
  assert.deepEqual(
    words.gains.map(({ text }) => text),
    [
      "removes 99.9 % of the error",
      "removes 99.9 % of the error",
      "removes none of the error",
      "removes 50 % of the added noise",
      "saves 278 µs a run",
      "told by an older log: 3",
    ],
  );
  assert.deepEqual(
    words.costs.map(({ text, basis }) => [text, basis]),
    [
      ["costs 24.5 µs a run", "measured"],
      ["14.26 kB larger", "counted"],
    ],
  );
});

test("only what was measured to cure nothing is folded", () => {
  const of = (...effects: Effect[]) => entriesOf([suggestion(["a"], { effects })], isSetting)[0]!;
  assert.equal(curesNothing(of(effect({ what: "error", value: 0.009 }))), true);
  assert.equal(curesNothing(of(effect({ what: "error", value: -1 }))), true);
  assert.equal(curesNothing(of(effect({ what: "error", value: 0.01 }))), false);
  assert.equal(curesNothing(of(effect({ what: "noise", value: 0.001, basis: "estimated" }))), false);
  assert.equal(curesNothing(of()), false);
});

test("what is about time is no cause of error", () => {
  const slow = suggestion(["a", "b"], { rule: "slower_in_int8" });
  const rows = [slow, suggestion(["b"]), suggestion(["b", "c"], { rule: "clipped_range" })];
  assert.deepEqual(
    [...causes(rows)],
    [
      ["b", "outlier_channels"],
      ["c", "clipped_range"],
    ],
  );
  assert.equal(isAboutTime(entriesOf([slow], isSetting)[0]!), true);
  assert.equal(isAboutTime(entriesOf(rows, isSetting)[1]!), false);
});

test("of a reason the first thing that it says", () => {
  assert.equal(
    reasonOf("2 of 16 channels are 76.5 times larger; the scale drowns 87%"),
    "2 of 16 channels are 76.5 times larger",
  );
  assert.equal(reasonOf("clipped. The same in 3 places"), "clipped");
  assert.equal(reasonOf("one thing"), "one thing");
});
