import assert from "node:assert/strict";
import { test } from "node:test";
import { toCsv } from "../src/csv.ts";
import type { Column } from "../src/records.ts";
import { numbers, texts } from "./tables.ts";

test("texts are quoted where they must be, missing numbers are empty", () => {
  const columns = [texts("name", ['a,"b"', "c\nd"]), numbers("x", [1.5, Number.NaN])];
  assert.equal(toCsv(columns, [0, 1]), 'name,x\r\n"a,""b""",1.5\r\n"c\nd",\r\n');
});

test("only the rows asked for, in their order", () => {
  assert.equal(toCsv([numbers("x", [1, 2, -3])], [2, 0]), "x\r\n-3\r\n1\r\n");
});

test("a name that a spreadsheet would run is made harmless", () => {
  assert.equal(toCsv([texts("name", ["=cmd()"])], [0]), "name\r\n'=cmd()\r\n");
});

test("floats have as many digits as they hold, whole numbers all of theirs", () => {
  const column: Column = { kind: "number", spec: { name: "x" }, values: Float32Array.of(0.1, 12345678, 1 / 3, 1e-20) };
  assert.equal(toCsv([column], [0, 1, 2, 3]), "x\r\n0.1\r\n12345678\r\n0.33333334\r\n1e-20\r\n");
});
