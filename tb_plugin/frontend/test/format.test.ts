import assert from "node:assert/strict";
import { test } from "node:test";
import {
  formatBytes,
  formatInterval,
  formatNumber,
  formatRange,
  formatScore,
  formatTime,
  listed,
  plural,
  shorten,
  signed,
  withUnit,
} from "../src/format.ts";

test("numbers by their unit", () => {
  assert.equal(formatNumber(17.04, "dB"), "17.0");
  assert.equal(formatNumber(0.00123, "share"), "0.123 %");
  assert.equal(formatNumber(1234567, "count"), "1,234,567");
  assert.equal(formatNumber(0.000012345, "value"), "1.23e-5");
  assert.equal(formatNumber(75.6612, "ratio"), "75.66");
  assert.equal(formatNumber(Number.NaN, "dB"), "–");
  assert.equal(formatNumber(0, "value"), "0");
});

test("units where the number does not carry them", () => {
  assert.equal(withUnit(17, "dB"), "17.0 dB");
  assert.equal(withUnit(0.5, "share"), "50 %");
  assert.deepEqual([withUnit(12, "µs"), withUnit(1230, "µs")], ["12 µs", "1.23 ms"]);
});

test("bytes, times, ranges", () => {
  assert.deepEqual([12, 49152, 3.1e6].map(formatBytes), ["12 B", "49.15 kB", "3.1 MB"]);
  assert.deepEqual([12.5, 4200, 3e6].map(formatTime), ["12.5 µs", "4.2 ms", "3 s"]);
  assert.equal(formatRange([25, null], "dB"), "25.0 dB or more");
  assert.equal(formatRange([null, 1], "steps"), "1 steps or less");
  assert.equal(formatRange([0, 0.001], "share"), "0 % to 0.1 %");
});

test("scores have four decimals, large losses two", () => {
  assert.deepEqual([0.75, -2, 12.345, Number.NaN].map(formatScore), ["0.7500", "-2.0000", "12.35", "–"]);
});

test("differences have a sign, unless they round to zero", () => {
  assert.equal(signed(0.05, formatScore), "+0.0500");
  assert.equal(signed(-0.05, formatScore), "−0.0500");
  assert.equal(signed(-0.00001, formatScore), "0.0000");
  assert.equal(signed(Number.NaN, formatScore), "–");
});

test("intervals have one unit and a sign at both ends", () => {
  assert.equal(formatInterval(-201, -179), "between −201 and −179 µs");
  assert.equal(formatInterval(-50, 1200), "between −0.05 and +1.2 ms");
});

test("words", () => {
  assert.equal(listed(["a", "b"]), "a, b");
  assert.equal(listed(["a", "b", "c"], 2), "a, b and 1 more");
  assert.equal(plural(1, "op"), "1 op");
  assert.equal(plural(20000, "op"), "20,000 ops");
  assert.equal(shorten("/a/long/name", 6), "…/name");
  assert.equal(shorten("short", 6), "short");
});
