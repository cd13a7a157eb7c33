import assert from "node:assert/strict";
import { test } from "node:test";
import { gunzip, numberAt, readColumn, readContainer, readRows, rowIndex, textAt, whyNull } from "../src/records.ts";
import { container, texts, zipped } from "./tables.ts";

test("a container gives its parts and blobs back", () => {
  const found = readContainer(
    container({ parts: [{ run: "é" }] }, [Uint8Array.of(1, 2), Uint8Array.of(), Uint8Array.of(3)]),
  );
  assert.deepEqual(found.parts, [{ run: "é" }]);
  assert.deepEqual(
    found.blobs.map((blob) => [...blob]),
    [[1, 2], [], [3]],
  );
});

test("numbers are read in place, as doubles of version 1 and floats of version 2", async () => {
  const doubles = await gunzip(Uint8Array.from(zipped(new Uint8Array(Float64Array.of(1.5, Number.NaN).buffer))));
  const old = readColumn({ name: "x" }, doubles, 2);
  assert.equal(numberAt(old, 0), 1.5);
  assert.ok(Number.isNaN(numberAt(old, 1)));
  const floats = readColumn({ name: "x", stored: "f4" }, Float32Array.of(0.25).buffer, 1);
  assert.equal(numberAt(floats, 0), 0.25);
});

test("texts are a dictionary and codes", () => {
  const list = Buffer.from('["a","ü"]  ');
  const bytes = Buffer.concat([Buffer.from([list.length, 0, 0, 0]), list, Buffer.from(Uint32Array.of(1, 0, 1).buffer)]);
  const found = readColumn({ name: "t", type: "text" }, Uint8Array.from(bytes).buffer, 3);
  assert.deepEqual(
    [0, 1, 2].map((row) => textAt(found, row)),
    ["ü", "a", "ü"],
  );
});

test("rows of all chunks in their order", () => {
  const chunks = ['[{"op":"a"},{"op":"b"}]', '[{"op":"c"}]'].map((text) => Uint8Array.from(Buffer.from(text)).buffer);
  assert.deepEqual(readRows(chunks), [{ op: "a" }, { op: "b" }, { op: "c" }]);
});

test("damaged gzip is an error, not an empty column", async () => {
  const bytes = Uint8Array.from(zipped("hello hello hello"));
  bytes[12]! ^= 0xff;
  await assert.rejects(gunzip(bytes));
});

test("gzip is not unpacked further than a log could be", async () => {
  const bomb = Uint8Array.from(zipped(new Uint8Array(200 << 20)));
  assert.ok(bomb.length < 210_000);
  await assert.rejects(gunzip(bomb), /more than 28 MiB/); // 16 MiB, and 64 times its size
  const plain = new Uint8Array(15 << 20);
  assert.equal((await gunzip(Uint8Array.from(zipped(plain)))).byteLength, plain.length);
});

test("an empty cell has a reason", () => {
  const floats = Buffer.from(Float32Array.of(Number.NaN, 1, Number.NaN).buffer);
  const list = Buffer.from('["","not measured"] ');
  const codes = Buffer.from(Uint32Array.of(1, 0, 0).buffer);
  const bytes = Buffer.concat([floats, Buffer.from([list.length, 0, 0, 0]), list, codes]);
  const column = readColumn({ name: "x", stored: "f4" }, Uint8Array.from(bytes).buffer, 3);
  const reason = texts("reason", ["a", "b", "folded into another op"]);
  assert.deepEqual(
    [0, 1, 2].map((row) => numberAt(column, row)),
    [Number.NaN, 1, Number.NaN],
  );
  assert.equal(whyNull(column, 0, reason), "not measured");
  assert.equal(whyNull(column, 2, reason), "folded into another op");
  assert.equal(whyNull(column, 2), "");
});

test("an empty cell of version 1 has a reason, too", () => {
  const spec = {
    name: "x",
    nulls: {
      "not measured": [
        [2, 4],
        [7, 8],
      ] as [number, number][],
    },
  };
  const column = readColumn(spec, new Float64Array(8).buffer, 8);
  const found = [1, 2, 3, 4, 7].map((row) => whyNull(column, row));
  assert.deepEqual(found, ["", "not measured", "not measured", "", "not measured"]);
});

test("the row of a name", () => {
  assert.deepEqual(
    [...rowIndex(texts("name", ["b", "a"]))],
    [
      ["b", 0],
      ["a", 1],
    ],
  );
});
