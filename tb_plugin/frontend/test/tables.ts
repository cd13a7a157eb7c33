// Columns and stored bytes made by hand, for the tests beside this file.

import { gzipSync } from "node:zlib";
import type { Column, ColumnSpec } from "../src/records.ts";

export function numbers(name: string, values: number[], spec: Partial<ColumnSpec> = {}): Column {
  return { kind: "number", spec: { name, ...spec }, values: Float64Array.from(values) };
}

export function texts(name: string, values: string[]): Column {
  const distinct = [...new Set(values)].sort();
  const codes = Uint32Array.from(values, (value) => distinct.indexOf(value));
  return { kind: "text", spec: { name, type: "text" }, texts: distinct, codes };
}

export function table(...columns: Column[]): Map<string, Column> {
  return new Map(columns.map((column) => [column.spec.name, column]));
}

/** What the server sends. */
export function container(json: object, blobs: Uint8Array[]): ArrayBuffer {
  const text = Buffer.from(JSON.stringify({ ...json, blobs: blobs.map((blob) => blob.length) }));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(text.length);
  return Uint8Array.from(Buffer.concat([length, text, ...blobs])).buffer;
}

export function zipped(bytes: Uint8Array | string): Uint8Array {
  return gzipSync(bytes);
}
