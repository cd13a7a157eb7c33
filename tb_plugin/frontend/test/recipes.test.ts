import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { checkNames, toolsOf, triedBySetting, triedIn, unionOps, wordsOf, writeConfig } from "../src/recipes.ts";
import type { Recipe, Suggestion, Trial } from "../src/records.ts";

const NONE = new Map<string, string>();

function recipe(item: string): Recipe {
  return { tool: "t", label: "T", before: "[", item, between: ",", after: "]", note: "" };
}

interface Given {
  ops: string[];
  tensors: Record<string, string>;
  modules: Record<string, string>;
  statements: Record<string, string>;
}

interface Cases {
  model: string[];
  given: Given[];
  recipes: { recipe: Recipe; texts: string[] }[];
}

test("texts are the same as those of inc_tb.advise.configs", () => {
  const file = new URL("../../../tests/data/recipe_cases.json", import.meta.url);
  const cases: Cases = JSON.parse(readFileSync(file, "utf8"));
  const model = new Set(cases.model);
  assert.ok(cases.recipes.length >= 24);
  for (const { recipe, texts } of cases.recipes) {
    for (const [i, { ops, tensors, modules, statements }] of cases.given.entries()) {
      const [known, told] = [new Map(Object.entries(modules)), new Map(Object.entries(statements))];
      const written = writeConfig(recipe, ops, new Map(Object.entries(tensors)), known, model, told);
      assert.equal(written, texts[i], recipe.tool);
    }
  }
});

test("modules that the log knows are not guessed", () => {
  const modules = new Map([
    ["conv1", "conv1"],
    ["node_add", "layer.0"],
  ]);
  const model = new Set(["conv1", "node_add"]);
  const [, known] = checkNames(recipe("{module}"), ["conv1", "node_add"], NONE, model, modules);
  assert.deepEqual(known, { ok: true, text: "2 module names were known from the model" });
  assert.equal(checkNames(recipe("{module}"), ["conv1"], NONE, model)[1]!.ok, false);
});

test("items that are the same come once", () => {
  assert.equal(writeConfig(recipe("{module}"), ["/a/Conv", "/a/Relu", "/b/Conv"], NONE), '["a","b"]');
});

test("what a placeholder stands for", () => {
  const words = wordsOf("/layer.0/fc/Gemm", new Map([["/layer.0/fc/Gemm", "logits"]]));
  assert.deepEqual(words, {
    name: "/layer.0/fc/Gemm",
    pattern: "/layer\\.0/fc/Gemm",
    tensor: "logits",
    module: "layer.0.fc",
  });
});

test("names are looked up in the model", () => {
  const model = new Set(["a", "b", "c"]);
  assert.deepEqual(checkNames(recipe("{name}"), ["a", "b"], NONE, model), [
    { ok: true, text: "2 of 2 names are in the model" },
  ]);
  assert.deepEqual(checkNames(recipe("{name}"), ["a", "x"], NONE, model), [
    { ok: false, text: "1 of 2 names are in the model; not x" },
  ]);
  assert.equal(checkNames(recipe("{name}"), ["a"], NONE, model)[0]!.text, "1 of 1 name is in the model");
});

test("patterns match their op only, whatever is in its name", () => {
  const names = ["a.b", "aXb", "a[0]", "a0", "line\nbreak"];
  const [, pattern] = checkNames(recipe("{pattern}"), names, NONE, new Set(names));
  assert.deepEqual(pattern, { ok: true, text: "5 of 5 patterns are exact: they match these ops and no others" });
});

test("ops that repeat are a pattern, as long as it matches no others", () => {
  const model = new Set([..."01234"].map((i) => `/l.${i}/fc/Gemm`));
  const [first, , third, fourth] = [...model] as [string, string, string, string];
  assert.equal(writeConfig(recipe("{pattern}"), model, NONE, NONE, model), '["/l\\\\.\\\\d+/fc/Gemm"]');
  const most = [first, third, fourth];
  assert.equal(writeConfig(recipe("{pattern}"), most, NONE, NONE, model), '["/l\\\\.(0|2|3)/fc/Gemm"]');
  assert.deepEqual(checkNames(recipe("{pattern}"), most, NONE, model)[1], {
    ok: true,
    text: "1 pattern matches these 3 ops and no others",
  });
});

test("tensors that the graph does not name are said", () => {
  const [, tensor] = checkNames(recipe("{tensor}"), ["a", "b"], new Map([["a", "a_out"]]), new Set(["a", "b"]));
  assert.deepEqual(tensor, { ok: false, text: "1 of 2 tensors are known from the graph; not b" });
});

test("what is in no module is left out, or the whole model would stay in fp32", () => {
  assert.equal(writeConfig(recipe("{module}"), ["/a/Conv", "/Relu", "/"], NONE), '["a"]');
  assert.equal(writeConfig(recipe("{module}"), ["conv_7"], NONE), '["conv_7"]');
  const model = new Set(["/a/Conv", "/Relu"]);
  const [, some] = checkNames(recipe("{module}"), ["/a/Conv", "/Relu"], NONE, model);
  assert.deepEqual(some, {
    ok: true,
    text: "1 module name was derived from the op names; in no module, so left out: /Relu",
  });
  const [, none] = checkNames(recipe("{module}"), ["/Relu"], NONE, model);
  assert.equal(none!.ok, false);
});

test("a module brings what is inside it along", () => {
  const model = new Set(["/l.1/Add", "/l.1/fc/Gemm", "/l.10/fc/Gemm", "/l.2/fc/Gemm"]);
  const [, alone] = checkNames(recipe("{module}"), ["/l.2/fc/Gemm"], NONE, model);
  assert.deepEqual(alone, { ok: true, text: "1 module name was derived from the op names" });
  const [, around] = checkNames(recipe("{module}"), ["/l.1/Add"], NONE, model);
  assert.equal(around!.ok, false);
  assert.match(around!.text, /inside are also 1 op that was not chosen: \/l\.1\/fc\/Gemm$/);
});

test("joint ops come once and in the order of the graph", () => {
  const rowOf = new Map(["a", "b", "c", "d"].map((name, row) => [name, row]));
  assert.deepEqual(unionOps([{ ops: ["c", "d"] }, { ops: ["?", "a", "c"] }], rowOf), ["a", "c", "d", "?"]);
});

test("logs of version 1 have texts instead of templates", () => {
  const old = { recipes: { inc: "…", json: "…" } } as unknown as Suggestion;
  assert.deepEqual(toolsOf([], [old, old]), [
    { tool: "inc", label: "inc", rounds: false, elsewhere: false },
    { tool: "json", label: "json", rounds: false, elsewhere: false },
  ]);
  assert.deepEqual(toolsOf([recipe("")], [old]), [{ tool: "t", label: "T", rounds: false, elsewhere: false }]);
});

function trial(accuracy: number | null, fallback: string[] = [], more: Partial<Trial> = {}): Trial {
  return { name: "", accuracy, fallback, ...more };
}

test("a trial with just these ops in fp32 is the measured result", () => {
  const runs = [
    { run: "int8", trial: trial(0.5, [], { config: { calibration: "minmax" } }) },
    { run: "some", trial: trial(0.75, ["b", "a"], { baseline: 1, config: { calibration: "minmax" } }) },
    { run: "more", trial: trial(0.9, ["a", "b", "c"]) },
    { run: "none", trial: null },
    { run: "unfinished", trial: trial(null, ["a", "b"]) },
  ];
  assert.deepEqual(triedIn(runs, "int8", ["a", "b"]), [
    { run: "some", accuracy: 0.75, gain: 0.25, better: true, baseline: 1, lowerIsBetter: false, otherwise: [] },
  ]);
  assert.deepEqual(triedIn(runs, "int8", []), []);
  assert.deepEqual(triedIn(runs, "none", ["a", "b"])[0]!.gain, null);
});

test("what the shown run keeps in fp32 already counts too, and other settings are named", () => {
  const runs = [
    { run: "one", trial: trial(0.5, ["a"], { lower_is_better: true, config: { calibration: "minmax", bits: 8 } }) },
    {
      run: "two",
      trial: trial(0.25, ["a", "b"], { lower_is_better: true, config: { calibration: "entropy", bits: 8 } }),
    },
  ];
  const [found] = triedIn(runs, "one", ["b"]);
  assert.deepEqual([found!.run, found!.gain, found!.better, found!.otherwise], ["two", -0.25, true, ["calibration"]]);
});

test("a run that differs in nothing but what a config sets has tried that config", () => {
  const here = { run: "a", trial: trial(0.6, ["x"], { config: { per_channel: false, format: "QDQ" } }) };
  const other = (run: string, config: object, fallback = ["x"]) => ({
    run,
    trial: trial(0.7, fallback, { config: { format: "QDQ", ...config } }),
  });
  const runs = [
    here,
    other("set", { per_channel: true }),
    other("more", { per_channel: true, format: "QOperator" }),
    other("alike", { per_channel: false }),
    other("kept", { per_channel: true }, []),
  ];
  const found = triedBySetting(runs, "a", "quantize_static(\n    per_channel=True,\n)");
  assert.deepEqual(
    found.map(({ run, otherwise }) => [run, otherwise]),
    [["set", []]],
  );
  assert.equal(found[0]!.gain!.toFixed(3), "0.100");
  assert.deepEqual(triedBySetting(runs, "a", "per_channel=False"), []);
  assert.deepEqual(triedBySetting(runs.slice(1), "a", "per_channel=True"), []);
});
