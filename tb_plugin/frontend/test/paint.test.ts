import assert from "node:assert/strict";
import { test } from "node:test";
import { buildTree } from "../src/graph/group.ts";
import { COLORS, kindsOf, OTHER } from "../src/graph/kinds.ts";
import { extremesOf, paintBy } from "../src/graph/paint.ts";
import type { ColumnSpec, NumberColumn, TextColumn } from "../src/records.ts";
import { texts } from "./tables.ts";

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

test("a group has the value, the color and the name of its worst op", () => {
  const higher = numbers({ better: "higher", normal: [25, null] }, 30, 8, 40, 12);
  const paint = paintBy(tree, higher, verdicts, rowOf);
  assert.equal(paint.worst?.name, "/a/two");
  assert.equal(
    paintBy(tree, numbers({ better: "higher", normal: [25, null] }, 30, 28, 40, 26), verdicts, rowOf).worst,
    null,
  );
  const mark = paint.markOf(a!);
  assert.equal(mark.text, "8.0 dB");
  assert.equal(mark.worst?.name, "/a/two");
  assert.equal(mark.color, paint.markOf(tree.ops[1]!).color);
  assert.equal(mark.verdict, "bad");
  assert.equal(
    paintBy(tree, numbers({ better: "lower" }, 30, 8, 40, 12), verdicts, rowOf).markOf(a!).worst?.name,
    "/a/three",
  );
});

test("a column that is neither good nor bad has a range and no color", () => {
  const mark = paintBy(tree, numbers({ unit: "count" }, 1, 3, 2, 7), undefined, rowOf).markOf(a!);
  assert.deepEqual({ ...mark }, { text: "1 to 3", color: "", verdict: "", missing: "", worst: null });
  assert.equal(paintBy(tree, numbers({ unit: "count" }, 1, 3, 2, 7), undefined, rowOf).markOf(b!).text, "7");
});

test("ops without a value are neutral and say why", () => {
  const spec = { better: "higher" as const, nulls: { "has no weights": [[0, 3]] as [number, number][] } };
  const paint = paintBy(tree, numbers(spec, Number.NaN, Number.NaN, Number.NaN, 12), verdicts, rowOf);
  assert.deepEqual(paint.markOf(tree.ops[0]!), {
    text: "",
    color: "",
    missing: "has no weights",
    worst: null,
    verdict: "ok",
  });
  assert.equal(paint.markOf(tree.ops[4]!).missing, "the op is not in the op table");
  const reason = texts("reason", ["it is a view", "fused", "", ""]);
  const why = paintBy(tree, numbers({}, Number.NaN, 1, 2, 3), verdicts, rowOf, reason);
  assert.equal(why.markOf(tree.ops[0]!).missing, "it is a view");
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
  assert.notEqual(paint.markOf(tree.ops[1]!).color, paint.markOf(tree.ops[2]!).color);
});

test("by a text: one kind has its color, several are counted, and ops without one are told", () => {
  const paint = paintBy(tree, texts("act_dtype", ["int8", "uint8", "int8", "int8"]), verdicts, rowOf);
  assert.deepEqual(paint.kinds, {
    own: [
      { text: "int8", color: COLORS[0] },
      { text: "uint8", color: COLORS[1] },
    ],
    others: 0,
  });
  assert.deepEqual(paint.markOf(tree.ops[1]!), {
    text: "uint8",
    color: COLORS[1],
    missing: "",
    worst: null,
    verdict: "watch",
  });
  const { text, color, verdict } = paint.markOf(a!);
  assert.deepEqual([text, color, verdict], ["2 kinds", "", "bad"]);
  assert.deepEqual([paint.markOf(b!).text, paint.markOf(b!).color], ["int8 in 1", COLORS[0]]);
  assert.equal(paint.markOf(tree.ops[4]!).missing, "the op is not in the op table");
  const alike = paintBy(tree, texts("act_dtype", ["int8", "int8", "int8", ""]), verdicts, rowOf);
  assert.equal(alike.markOf(a!).text, "int8");
  assert.equal(alike.markOf(b!).missing, "none of its ops has a value");
});

test("the most frequent kinds have a color each, the others one together", () => {
  const all = Array.from({ length: COLORS.length + 3 }, (_, i) => `kind${String(i).padStart(2, "0")}`);
  const { own, others } = kindsOf([...all, ...all.slice(3), "", ""]);
  assert.deepEqual(
    own.map(({ text }) => text),
    all.slice(3),
  );
  assert.equal(others, 3);
  assert.equal(new Set([...own.map(({ color }) => color), OTHER]).size, COLORS.length + 1);
  assert.deepEqual(kindsOf(["", ""]), { own: [], others: 0 });
});

test("letters are legible on every kind, in light and dark", () => {
  // --bg, and what open groups have of --muted in it: 0.86 * 255 + 0.14 * 92 = 232, 0.86 * 48 + 0.14 * 190 = 68
  for (const [background, letters] of [
    [255, 0x1c],
    [232, 0x1c],
    [0x30, 0xf1],
    [68, 0xf1],
  ] as const) {
    for (const color of [...COLORS, OTHER]) {
      const [light, dark] = [luminance(mixed(color, background)), luminance([letters, letters, letters])].sort(
        (x, y) => y - x,
      );
      assert.ok((light! + 0.05) / (dark! + 0.05) > 4.5, `${color} on ${background}`);
    }
  }
});

/** The color over a gray page, by the formula of CSS for hsl(). */
function mixed(color: string, background: number): number[] {
  const [hue, saturation, lightness, alpha] = color.match(/[\d.]+/g)!.map(Number) as [number, number, number, number];
  const l = lightness / 100;
  const chroma = (saturation / 100) * Math.min(l, 1 - l);
  return [0, 8, 4].map((n) => {
    const k = (n + hue / 30) % 12;
    const channel = 255 * (l - chroma * Math.max(-1, Math.min(k - 3, 9 - k, 1)));
    return alpha * channel + (1 - alpha) * background;
  });
}

/** As WCAG 2 defines it. */
function luminance(rgb: number[]): number {
  const [r, g, b] = rgb.map((channel) => {
    const c = channel / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
}
