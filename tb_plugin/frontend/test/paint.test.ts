import assert from "node:assert/strict";
import { test } from "node:test";
import { buildTree } from "../src/graph/group.ts";
import { extremesOf, paintBy } from "../src/graph/paint.ts";
import type { ColumnSpec, NumberColumn, TextColumn } from "../src/records.ts";

const NAMES = ["/a/one", "/a/two", "/a/three", "/b/one", "/b/two"];
const tree = buildTree(NAMES.map((name) => ({ name, type: "Conv", inputs: [] })));
const [a, b] = ["group:/a", "group:/b"].map((id) => tree.groups.get(id)!);
const rowOf = new Map(NAMES.slice(0, 4).map((name, row) => [name, row]));

function numbers(spec: Partial<ColumnSpec>, ...values: number[]): NumberColumn {
  return {
    kind: "number",
    spec: { name: "n", unit: "dB", ...spec },
    values: Float64Array.from(values),
  } as NumberColumn;
}

const verdicts = {
  kind: "text",
  spec: { name: "verdict", type: "text" },
  texts: ["", "bad", "ok", "watch"],
  codes: Uint32Array.from([2, 3, 1, 0]),
} as TextColumn;

test("lowest and highest of each group that has a value", () => {
  const found = extremesOf(tree, [30, 8, Number.NaN, Number.NaN, Number.NaN]);
  assert.deepEqual(found.get("group:/a"), { known: 2, low: tree.ops[1], high: tree.ops[0] });
  assert.equal(found.has("group:/b"), false);
});

test("a group has the value, the colour and the name of its worst op", () => {
  const higher = numbers({ better: "higher", normal: [25, null] }, 30, 8, 40, 12);
  const paint = paintBy(tree, higher, verdicts, rowOf);
  const mark = paint.markOf(a!);
  assert.equal(mark.text, "8.0 dB");
  assert.equal(mark.worst?.name, "/a/two");
  assert.equal(mark.colour, paint.markOf(tree.ops[1]!).colour);
  assert.equal(mark.verdict, "bad");
  assert.equal(
    paintBy(tree, numbers({ better: "lower" }, 30, 8, 40, 12), verdicts, rowOf).markOf(a!).worst?.name,
    "/a/three",
  );
});

test("a column that is neither good nor bad has a range and no colour", () => {
  const mark = paintBy(tree, numbers({ unit: "count" }, 1, 3, 2, 7), undefined, rowOf).markOf(a!);
  assert.deepEqual({ ...mark }, { text: "1 to 3", colour: "", verdict: "", missing: "", worst: null });
  assert.equal(paintBy(tree, numbers({ unit: "count" }, 1, 3, 2, 7), undefined, rowOf).markOf(b!).text, "7");
});

test("ops without a value are neutral and say why", () => {
  const spec = { better: "higher" as const, nulls: { "has no weights": [[0, 3]] as [number, number][] } };
  const paint = paintBy(tree, numbers(spec, Number.NaN, Number.NaN, Number.NaN, 12), verdicts, rowOf);
  assert.deepEqual(paint.markOf(tree.ops[0]!), {
    text: "",
    colour: "",
    missing: "has no weights",
    worst: null,
    verdict: "ok",
  });
  assert.equal(paint.markOf(tree.ops[4]!).missing, "the op is not in the op table");
  assert.equal(paint.markOf(a!).missing, "none of its ops has a value");
});

test("by verdict: bad is worse than watch, which is worse than ok", () => {
  const paint = paintBy(tree, verdicts, verdicts, rowOf);
  assert.deepEqual(
    tree.ops.map((op) => paint.markOf(op).text),
    ["ok", "watch", "bad", "", ""],
  );
  assert.equal(paint.markOf(a!).text, "bad");
  assert.equal(paint.markOf(a!).worst?.name, "/a/three");
  assert.equal(paint.markOf(b!).text, "");
  assert.notEqual(paint.markOf(tree.ops[1]!).colour, paint.markOf(tree.ops[2]!).colour);
});
