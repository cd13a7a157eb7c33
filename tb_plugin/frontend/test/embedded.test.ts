// A report answers from its own records as the server does.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { readEmbedded } from "../src/embedded.ts";
import { gunzip, readColumn } from "../src/records.ts";

const packed = (data: string | Uint8Array) => gzipSync(data).toString("base64");
const numbers = (...values: number[]) => packed(new Uint8Array(Float64Array.of(...values).buffer));

function record(run: string, kind: string, step: number, blobs: number[], more: object = {}): object {
  const stands = kind !== "ops" && kind !== "trial";
  return { run, kind, step, stands, version: 2, rows: 1, columns: [], index: {}, meta: {}, blobs, ...more };
}

const book = {
  runs: [{ name: "a", kinds: { ops: { version: 2, steps: [0, 5], wall_time: 1 } } }],
  records: [
    record("a", "ops", 0, [0], { columns: [{ name: "x" }], meta: { samples: 8 } }),
    record("a", "ops", 5, [1], { columns: [{ name: "x" }] }),
    record("a", "histograms", 0, [2, 3], { index: { conv: 2 } }),
    { run: "a", kind: "trial", step: 0, stands: false, error: "the trial record is damaged" },
  ],
};
const blobs = [numbers(1.5), numbers(2.5), packed('[{"op":"relu"}]'), packed('[{"op":"conv"}]')];
const answers = await readEmbedded(JSON.stringify({ book: packed(JSON.stringify(book)), blobs }));

async function ask(route: string, ...query: [string, string][]) {
  return answers.container(route, query);
}

test("columns at a step, and of the newest one; what is not there is told", async () => {
  assert.deepEqual(await answers.runs(), book.runs);
  for (const [step, value] of [
    [[["step", "0"]], 1.5],
    [[], 2.5],
  ] as [[string, string][], number][]) {
    const { parts, headers, blobs } = await ask("columns", ["run", "a"], ["name", "x"], ["header", "1"], ...step);
    const column = readColumn(parts[0]!.column!, await gunzip(blobs[parts[0]!.blob!]!), 1);
    assert.deepEqual([...(column as { values: Float64Array }).values], [value]);
    assert.equal((headers![0] as { rows: number }).rows, 1);
  }
  const { parts } = await ask("columns", ["run", "a"], ["name", "x"], ["name", "y"], ["run", "b"]);
  assert.deepEqual(
    parts.map(({ run, name, error }) => [run, name, error ?? ""]),
    [
      ["a", "x", ""],
      ["a", "y", "run a has no column y."],
      ["b", "x", "run b has no ops record."],
      ["b", "y", "run b has no ops record."],
    ],
  );
});

test("histograms stand at later steps, and an op has its own element", async () => {
  const { parts, blobs } = await ask("histogram", ["run", "a"], ["op", "conv"], ["step", "5"]);
  assert.equal(parts[0]!.step, 0);
  assert.equal(new TextDecoder().decode(await gunzip(blobs[parts[0]!.blob!]!)), '[{"op":"conv"}]');
  const missing = await ask("histogram", ["run", "a"], ["op", "gemm"]);
  assert.equal(missing.parts[0]!.error, "run a has no histograms of op gemm; it was not compared.");
});

test("a damaged record says so, and none of an earlier step takes its place", async () => {
  const { parts } = await ask("record", ["run", "a"], ["kind", "trial"]);
  assert.equal(parts[0]!.error, "the trial record is damaged");
  const later = await ask("record", ["run", "a"], ["kind", "trial"], ["step", "5"]);
  assert.equal(later.parts[0]!.error, "run a has no trial record at step 5.");
});

test("equal blobs travel once", async () => {
  const { parts, blobs } = await ask("columns", ["run", "a"], ["name", "x"], ["name", "x"]);
  assert.deepEqual(
    parts.map(({ blob }) => blob),
    [0, 0],
  );
  assert.equal(blobs.length, 1);
});
