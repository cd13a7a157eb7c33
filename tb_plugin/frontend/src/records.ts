// What is stored, as the page reads it. Everything here is a pure function of bytes.

import type {
  ChannelRow,
  Column as ColumnSpec,
  GraphNode,
  Header,
  HistogramRow,
  Preview,
  ProfileRow,
  Recipe,
  RowKind,
  SampleRow,
  Span,
  Suggestion,
  Tokens,
  Trial,
} from "./recordtypes.ts";

export type { Effect } from "./recordtypes.ts";
export type {
  ChannelRow,
  ColumnSpec,
  GraphNode,
  HistogramRow,
  Preview,
  ProfileRow,
  Recipe,
  SampleRow,
  Span,
  Suggestion,
  Tokens,
  Trial,
};

/** Texts are sorted, so codes sort as texts do. */
interface Texts {
  texts: string[];
  codes: Uint32Array;
}

export interface NumberColumn {
  kind: "number";
  spec: ColumnSpec;
  values: Float64Array | Float32Array;
  /** Why there is no value, where the row's own reason does not tell. */
  reasons?: Texts;
}

export interface TextColumn extends Texts {
  kind: "text";
  spec: ColumnSpec;
}

export type Column = NumberColumn | TextColumn;

export interface TableHeader extends Pick<Header, "version" | "rows"> {
  run: string;
  step: number;
  columns: ColumnSpec[];
  meta: Meta;
}

export interface Meta {
  reference?: string;
  quantized?: string;
  framework?: string;
  samples?: number;
  notes?: string[];
  /** Of suggestions: the templates of configs, and what their evidence means. */
  recipes?: Recipe[];
  evidence?: ColumnSpec[];
  /** Of a profile: the names of the two models, and what was measured. */
  fp32?: string;
  int8?: string;
  runs?: number;
  threads?: number;
  /** By which share the profiler slows each model down. */
  overhead?: Partial<Record<Span[0], number>>;
  fp32_total_us?: number;
  int8_total_us?: number;
  /** Whole runs without a profiler. */
  total?: ProfileRow;
}

export interface RowKinds extends Record<RowKind, object> {
  suggestions: Suggestion;
  graph: GraphNode;
  trial: Trial;
  profile: ProfileRow;
  tokens: Tokens;
  histograms: HistogramRow;
  channels: ChannelRow;
  samples: SampleRow;
  previews: Preview;
}

/** A record that is read whole. */
export interface Rows<K extends keyof RowKinds> {
  rows: RowKinds[K][];
  meta: Meta;
  step: number;
}

/** What the server sends: a JSON text about parts, then blobs that the parts refer to. */
export interface Container {
  parts: Part[];
  headers?: (TableHeader | { run: string; error: string })[];
  blobs: Uint8Array<ArrayBuffer>[];
}

export interface Part {
  run: string;
  error?: string;
  step?: number;
  name?: string;
  rows?: number;
  column?: ColumnSpec;
  meta?: Meta;
  blob?: number;
  blobs?: number[];
}

export function readContainer(data: ArrayBuffer): Container {
  const length = new DataView(data).getUint32(0, true);
  const { blobs: sizes, ...rest } = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
  let at = 4 + length;
  const blobs = (sizes as number[]).map((size) => {
    at += size;
    return new Uint8Array(data, at - size, size);
  });
  return { ...rest, blobs };
}

/** As inc_tb/records/packed.py has them: a few bytes of gzip can fill any memory. */
const LARGEST_ELEMENT = 128 << 20;
const SPARE_BYTES = 16 << 20;
const MOST_TO_ONE = 64;
/** What is unpacked at once: no more than 16 MB come of it. */
const PIECE_BYTES = 1 << 14;

export async function gunzip(blob: Uint8Array<ArrayBuffer>): Promise<ArrayBuffer> {
  const most = Math.min(LARGEST_ELEMENT, SPARE_BYTES + MOST_TO_ONE * blob.length);
  const reader = piecesOf(blob).pipeThrough(new DecompressionStream("gzip")).getReader();
  const found: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    found.push(next.value);
    size += next.value.length;
    if (size > most) {
      await reader.cancel();
      throw new Error(`it unpacks to more than ${most >> 20} MiB, which no log of inc-tb does`);
    }
  }
  return new Blob(found).arrayBuffer();
}

function piecesOf(blob: Uint8Array<ArrayBuffer>): ReadableStream<Uint8Array<ArrayBuffer>> {
  let at = 0;
  return new ReadableStream({
    pull(controller) {
      if (at >= blob.length) return controller.close();
      controller.enqueue(blob.subarray(at, at + PIECE_BYTES));
      at += PIECE_BYTES;
    },
  });
}

export function readRows<T>(chunks: ArrayBuffer[]): T[] {
  return chunks.flatMap((chunk) => JSON.parse(new TextDecoder().decode(chunk)) as T[]);
}

export function readColumn(spec: ColumnSpec, data: ArrayBuffer, rows: number): Column {
  if (spec.type === "text") return { kind: "text", spec, ...readTexts(data, 0, rows) };
  const values = spec.stored === "f4" ? new Float32Array(data, 0, rows) : new Float64Array(data, 0, rows);
  const end = values.byteLength;
  return { kind: "number", spec, values, ...(data.byteLength > end && { reasons: readTexts(data, end, rows) }) };
}

function readTexts(data: ArrayBuffer, at: number, rows: number): Texts {
  const length = new DataView(data).getUint32(at, true);
  const texts: string[] = JSON.parse(new TextDecoder().decode(new Uint8Array(data, at + 4, length)));
  return { texts, codes: new Uint32Array(data, at + 4 + length, rows) };
}

export function textAt(column: Column | undefined, row: number): string {
  return column?.kind === "text" ? (column.texts[column.codes[row]!] ?? "") : "";
}

export function sameNumbers(a: Column, b: Column): boolean {
  if (a.kind !== "number" || b.kind !== "number" || a.values.length !== b.values.length) return false;
  return a.values.every((value, row) => Object.is(value, b.values[row]));
}

export function numberAt(column: Column | undefined, row: number): number {
  return column?.kind === "number" ? (column.values[row] ?? Number.NaN) : Number.NaN;
}

/** Why a cell is empty; the column "reason" speaks for those of its row that have no reason of their own. */
export function whyNull(column: Column, row: number, reason?: Column): string {
  if (column.kind === "text") return "";
  const own = column.reasons?.texts[column.reasons.codes[row]!];
  if (own) return own;
  for (const [text, ranges] of Object.entries(column.spec.nulls ?? {})) {
    if (ranges.some(([from, to]) => from <= row && row < to)) return text;
  }
  return textAt(reason, row);
}

export function numberColumn(spec: ColumnSpec, values: (number | null | undefined)[]): NumberColumn {
  return { kind: "number", spec, values: Float64Array.from(values, (value) => value ?? Number.NaN) };
}

/** 2 before 10. */
export const natural = new Intl.Collator("en", { numeric: true });

export function textColumn(spec: ColumnSpec, values: string[]): TextColumn {
  const texts = [...new Set(values)].sort(natural.compare);
  const codes = new Map(texts.map((text, code) => [text, code]));
  return {
    kind: "text",
    spec: { ...spec, type: "text" },
    texts,
    codes: Uint32Array.from(values, (text) => codes.get(text)!),
  };
}

/** Row of each op name. */
export function rowIndex(names: Column): Map<string, number> {
  const found = new Map<string, number>();
  if (names.kind === "text") for (const [row, code] of names.codes.entries()) found.set(names.texts[code]!, row);
  return found;
}
