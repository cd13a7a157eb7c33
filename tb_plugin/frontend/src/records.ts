// What inc_tb/records.py stores, as the page reads it. Everything here is a pure function of bytes.

export interface ColumnSpec {
  name: string;
  type?: "number" | "text";
  label?: string;
  unit?: string;
  better?: "higher" | "lower" | "";
  normal?: [number | null, number | null] | null;
  help?: string;
  /** Version 1: reason -> ranges of rows [from, to) that have no value. */
  nulls?: Record<string, [number, number][]>;
  stored?: "f8" | "f4";
}

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

export interface TableHeader {
  run: string;
  step: number;
  version: number;
  rows: number;
  columns: ColumnSpec[];
  meta: Meta;
}

export interface Meta {
  reference?: string;
  quantized?: string;
  framework?: string;
  samples?: number;
  notes?: string[];
  recipes?: Recipe[];
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

export interface HistogramRow {
  op: string;
  role: "weight" | "input" | "output" | "isolated";
  top: number;
  /** [bin, count, bin, count, …] */
  reference: number[];
  quantized: number[];
  error_top: number;
  error: number[];
  limits?: [number, number] | null;
  step?: number | null;
}

export interface ChannelRow {
  op: string;
  role: HistogramRow["role"];
  min: (number | null)[];
  max: (number | null)[];
  q_min: (number | null)[];
  q_max: (number | null)[];
  sqnr_db: (number | null)[];
}

export interface Effect {
  kind: "recovers" | "costs";
  label: string;
  value: number;
  unit: string;
  basis: "measured" | "counted" | "estimated";
  how: string;
}

export interface Suggestion {
  ops: string[];
  rule: string;
  because: string;
  evidence: Record<string, unknown>;
  recipes: Record<string, string>;
  pattern: string;
  rank: number;
  effects?: Effect[];
}

export interface Recipe {
  tool: string;
  label: string;
  before: string;
  item: string;
  between: string;
  after: string;
  note: string;
}

export interface GraphNode {
  name: string;
  type: string;
  inputs: string[];
  tensor?: string;
  module?: string;
}

export interface Trial {
  name: string;
  accuracy?: number | null;
  baseline?: number | null;
  fallback?: string[];
  config?: Record<string, unknown>;
  objectives?: Record<string, number>;
  wall_s?: number | null;
  notes?: string[];
  target?: number | null;
  lower_is_better?: boolean;
}

/** [model, thread, start_us, duration_us] */
export type Span = ["fp32" | "int8", number, number, number];

export interface ProfileRow {
  op: string;
  type?: string;
  fp32_us?: number | null;
  int8_us?: number | null;
  convert_us?: number;
  fp32_p95_us?: number | null;
  int8_p95_us?: number | null;
  fp32_mean_us?: number | null;
  int8_mean_us?: number | null;
  differs?: boolean | null;
  spans?: Span[];
  /** Other ops that the runtime has fused into it; they have no time of their own. */
  ops?: string[];
  /** int8 with conversion minus fp32, run by run, and its 95 % interval for all ops together. */
  difference_us?: number | null;
  low_us?: number | null;
  high_us?: number | null;
}

export interface RowKinds {
  suggestions: Suggestion;
  graph: GraphNode;
  trial: Trial;
  profile: ProfileRow;
  histograms: HistogramRow;
  channels: ChannelRow;
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

export async function gunzip(blob: Uint8Array<ArrayBuffer>): Promise<ArrayBuffer> {
  const stream = new Blob([blob]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
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
