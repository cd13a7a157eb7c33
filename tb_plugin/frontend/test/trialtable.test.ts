import assert from "node:assert/strict";
import { test } from "node:test";
import { sorted } from "../src/order.ts";
import { numberAt, textAt, textColumn } from "../src/records.ts";
import { asText, bestSaving, fallbackOf, fp32Of, MOST_CONFIG, trialTable } from "../src/trialtable.ts";

const logged = (run: string, trial: object | null, error = "") => ({
  run,
  trial: trial && { name: run, ...trial },
  error,
});

test("runs come in natural order, with one column for each objective and config key of any trial", () => {
  const table = trialTable([
    logged("trial-10", { accuracy: 0.7, objectives: { latency_ms: 3 } }),
    logged("trial-2", { accuracy: 0.6, objectives: { size_mb: 1, latency_ms: 2 }, config: { scheme: "a" } }),
    logged("broken", null, "the checksum is wrong"),
  ]);
  assert.deepEqual(
    table.runs.map(({ run }) => run),
    ["broken", "trial-2", "trial-10"],
  );
  assert.deepEqual(table.objectives, ["latency_ms", "size_mb"]);
  assert.equal(numberAt(table.columns.get("objectives.size_mb"), 1), 1);
  assert.ok(Number.isNaN(numberAt(table.columns.get("objectives.size_mb"), 2)));
  assert.equal(textAt(table.columns.get("config.scheme"), 1), "a");
  assert.equal(textAt(table.columns.get("config.scheme"), 0), "");
  assert.equal(table.columns.has("notes"), false);
});

test("the best trial comes first when sorted, runs without accuracy last", () => {
  const table = trialTable([
    logged("a", { accuracy: 0.5, target: 0.6 }),
    logged("b", null),
    logged("c", { accuracy: 0.7, target: 0.6 }),
  ]);
  const rows = sorted(Uint32Array.of(0, 1, 2), [{ column: "accuracy", descending: true }], table.columns);
  assert.deepEqual([...rows], [2, 0, 1]);
  assert.deepEqual(
    [0, 1, 2].map((row) => textAt(table.columns.get("target"), row)),
    ["missed", "", "met"],
  );
});

test("losses turn the direction round, and a mixture is told", () => {
  const loss = { accuracy: 2, baseline: 1.5, lower_is_better: true };
  assert.equal(trialTable([logged("a", loss)]).columns.get("accuracy")!.spec.better, "lower");
  assert.equal(numberAt(trialTable([logged("a", loss)]).columns.get("drop"), 0), 0.5);
  assert.equal(trialTable([logged("a", loss)]).mixed, false);
  assert.equal(trialTable([logged("a", loss), logged("b", { accuracy: 0.9 })]).mixed, true);
});

test("a config with a key for every op does not become a column each", () => {
  const config = Object.fromEntries(Array.from({ length: MOST_CONFIG + 2 }, (_, i) => [`op${i}`, "int8"]));
  const table = trialTable([logged("a", { config }), logged("b", {})]);
  assert.deepEqual(table.hiddenConfig, ["op30", "op31"]);
  assert.equal([...table.columns.keys()].filter((name) => name.startsWith("config.")).length, MOST_CONFIG);
});

test("what all trials were told alike is no column", () => {
  const alike = { format: "QDQ", per_channel: false };
  const table = trialTable([logged("a", { config: alike }), logged("b", { config: { ...alike, per_channel: true } })]);
  assert.deepEqual(
    [...table.columns.keys()].filter((name) => name.startsWith("config.")),
    ["config.per_channel"],
  );
  assert.deepEqual(table.sameConfig, ["format QDQ"]);
  assert.deepEqual(trialTable([logged("a", { config: alike })]).sameConfig, ["format QDQ", "per_channel false"]);
});

test("fp32 is the row behind the trials, where they agree on it", () => {
  const cost = { objectives: { ms: 4 }, baseline_objectives: { ms: 5 } };
  const runs = [logged("a", { accuracy: 0.7, baseline: 0.8, ...cost }), logged("b", null)];
  const table = trialTable(runs);
  assert.equal(table.fp32?.accuracy, 0.8);
  assert.deepEqual(
    ["accuracy", "objectives.ms", "fallback", "best"].map((name) => numberAt(table.columns.get(name), 2)),
    [0.8, 5, Number.NaN, Number.NaN],
  );
  assert.equal(textAt(table.columns.get("run"), 2), "fp32");
  assert.equal(fp32Of([...runs, logged("c", { accuracy: 0.1, baseline: 0.3 })]), null);
  assert.equal(trialTable([logged("a", { accuracy: 0.7 })]).fp32, null);
});

test("what a trial that meets the target saves of fp32", () => {
  const of = (run: string, accuracy: number, ms: number) =>
    logged(run, { accuracy, target: 0.75, objectives: { ms }, baseline_objectives: { ms: 10 } });
  assert.deepEqual(bestSaving([of("fast", 0.7, 2), of("b", 0.8, 9.5), of("c", 0.8, 9)], "ms"), {
    run: "c",
    share: 1 - 0.9,
  });
  assert.equal(bestSaving([of("fast", 0.7, 2)], "ms"), null);
  assert.equal(bestSaving([logged("a", { accuracy: 1, target: 0, objectives: { ms: 1 } })], "ms"), null);
});

test("rewrites of the model are told by their kind", () => {
  const rewrites = [{ kind: "equalize" }, { kind: "equalize" }, { kind: "clamp" }];
  assert.equal(asText(rewrites), "equalize × 2, clamp");
  assert.equal(asText([1]), "[1]");
});

test("config values of any type become text", () => {
  assert.equal(asText(true), "true");
  assert.equal(asText({ bits: 8 }), '{"bits":8}');
  assert.equal(asText([{ kind: "clamp", values: [1] }, { kind: "smooth" }]), "clamp, smooth");
  assert.equal(asText(["a", "b"]), '["a","b"]');
  assert.equal(asText(null), "");
});

test("an op that is kept in fp32 twice counts once", () => {
  assert.deepEqual(fallbackOf({ fallback: ["b", "a", "b"] }), ["b", "a"]);
  assert.deepEqual(fallbackOf(null), []);
  const table = trialTable([logged("a", { fallback: ["b", "b"] }), logged("c", {}), logged("d", null)]);
  assert.deepEqual(
    [0, 1, 2].map((row) => numberAt(table.columns.get("fallback"), row)),
    [1, 0, Number.NaN],
  );
});

test("numbers inside texts sort as numbers", () => {
  assert.deepEqual(textColumn({ name: "n" }, ["10", "9", "10"]).texts, ["9", "10"]);
});
