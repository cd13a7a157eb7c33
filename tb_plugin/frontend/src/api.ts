// The server's routes as signals that fill themselves. The only module that fetches.

import { batch, type Signal } from "@preact/signals";
import type { Answers, RunInfo } from "./answers.ts";
import { Batch, type Query, type RunAt, runQuery, stepQuery } from "./batch.ts";
import { failed, type Loadable, ready } from "./loadable.ts";
import {
  type ChannelRow,
  type Column,
  gunzip,
  type HistogramRow,
  type Meta,
  type Part,
  type RowKinds,
  type Rows,
  readColumn,
  readContainer,
  readRows,
  type TableHeader,
} from "./records.ts";
import { resource } from "./resource.ts";

export type { RunInfo } from "./answers.ts";
export type { RunAt } from "./batch.ts";
export { forgetFailures } from "./resource.ts";

const server: Answers = {
  runs: async () => (await (await get("runs", [])).json()).runs,
  container: async (route, query) => readContainer(await (await get(route, query)).arrayBuffer()),
};
let answers = server;

/** Of a page that is not TensorBoard's; to be said before anything is asked. */
export function answerFrom(others: Answers): void {
  answers = others;
}

export function fetchRuns(): Promise<RunInfo[]> {
  return answers.runs();
}

interface Settled<T> {
  at: RunAt;
  settle: (value: Loadable<T>) => void;
}

type WantedColumn = Settled<Column> & { name: string };
type WantedRecord = Settled<Rows<keyof RowKinds>> & { kind: keyof RowKinds };

const columnBatch = new Batch<WantedColumn>(
  ({ name }) => name,
  async (wanted, runs) => {
    const names = new Set(wanted.map(({ name }) => name));
    await answer<Column, WantedColumn>(
      wanted,
      "columns",
      [...runs, ...[...names].map((name): [string, string] => ["name", name])],
      {
        idOf: ({ at, name }) => `${name} ${at.run}`,
        idOfPart: (part) => `${part.name} ${part.run}`,
        read: async (part, unzipped) => readColumn(part.column!, await unzipped(part.blob!), part.rows!),
      },
    );
  },
);

const recordBatch = new Batch<WantedRecord>(
  ({ kind }) => kind,
  async (wanted, runs) => {
    for (const [kind, of] of Map.groupBy(wanted, ({ kind }) => kind)) {
      await answer(of, "record", [...runs, ["kind", kind]], {
        idOf: ({ at }) => at.run,
        idOfPart: ({ run }) => run,
        read: readRecord,
      });
    }
  },
);

interface Reading<Wanted, T> {
  idOf: (wanted: Wanted) => string;
  idOfPart: (part: Part) => string;
  read: (part: Part, unzipped: (blob: number) => Promise<ArrayBuffer>) => Promise<T>;
}

async function answer<T, Wanted extends Settled<T>>(
  wanted: Wanted[],
  route: string,
  query: Query,
  reading: Reading<Wanted, T>,
): Promise<void> {
  const found = new Map<string, Loadable<T>>();
  let missing: Loadable<T> = failed("the server sent no answer for it");
  try {
    const { parts, blobs } = await answers.container(route, query);
    const zipped = new Map<number, Promise<ArrayBuffer>>();
    const unzipped = (blob: number) => {
      if (!zipped.has(blob)) zipped.set(blob, gunzip(blobs[blob]!));
      return zipped.get(blob)!;
    };
    await Promise.all(
      parts.map(async (part) => {
        const read = () => reading.read(part, unzipped).then(ready, broken);
        found.set(reading.idOfPart(part), part.error === undefined ? await read() : failed(part.error));
      }),
    );
  } catch (error) {
    missing = failed(explain(error));
  }
  batch(() => {
    for (const one of wanted) one.settle(found.get(reading.idOf(one)) ?? missing);
  });
}

/** One column of one run. Columns that are asked for at the same time travel together. */
export function column(at: RunAt, name: string): Signal<Loadable<Column>> {
  return resource(`column ${name} ${at.step} ${at.run}`, at, (settle) => columnBatch.add({ at, name, settle }));
}

/** Which columns the table of a run has, and what was measured. */
export function header(at: RunAt): Signal<Loadable<TableHeader>> {
  return resource(`header ${at.step} ${at.run}`, at, (settle) =>
    load(settle, async () => {
      const { headers } = await answers.container("columns", [...runQuery(at), ["header", "1"], ...stepQuery(at)]);
      const found = headers![0]!;
      if ("error" in found) throw new Error(found.error);
      return found;
    }),
  );
}

/** A whole record, such as the suggestions of a run; the same of many runs travels together. */
export function record<K extends keyof RowKinds>(kind: K, at: RunAt): Signal<Loadable<Rows<K>>> {
  return resource<Rows<K>>(`${kind} ${at.step} ${at.run}`, at, (settle) =>
    recordBatch.add({ at, kind, settle: settle as WantedRecord["settle"] }),
  );
}

export function histograms(at: RunAt, op: string): Signal<Loadable<HistogramRow[]>> {
  return rowsOfOp("histogram", at, op);
}

export function channels(at: RunAt, op: string): Signal<Loadable<ChannelRow[]>> {
  return rowsOfOp("channels", at, op);
}

function rowsOfOp<T extends { op: string }>(route: string, at: RunAt, op: string): Signal<Loadable<T[]>> {
  return resource(`${route} ${at.step} ${at.run} ${op}`, at, (settle) =>
    load(settle, async () => {
      const { parts, blobs } = await answers.container(route, [...runQuery(at), ["op", op], ...stepQuery(at)]);
      const part = parts[0]!;
      if (part.error !== undefined) throw new Error(part.error);
      const rows = readRows<T>([await gunzip(blobs[part.blob!]!)]);
      return rows.filter((row) => row.op === op);
    }),
  );
}

async function readRecord(part: Part, unzipped: (blob: number) => Promise<ArrayBuffer>): Promise<Rows<keyof RowKinds>> {
  const rows = readRows<RowKinds[keyof RowKinds]>(await Promise.all(part.blobs!.map(unzipped)));
  return { rows, meta: (part.meta ?? {}) as Meta, step: part.step! };
}

function load<T>(settle: (value: Loadable<T>) => void, work: () => Promise<T>): void {
  work().then(
    (value) => settle(ready(value)),
    (error) => settle(failed(explain(error))),
  );
}

function broken(error: unknown): Loadable<never> {
  return failed(`what the server sent cannot be read (${explain(error)})`);
}

async function get(route: string, query: Query): Promise<Response> {
  const url = new URL(`../${route}`, import.meta.url);
  url.search = new URLSearchParams(query).toString();
  const response = await fetch(url).catch(() => {
    throw new Error("TensorBoard does not answer. Is it still running?");
  });
  if (response.ok) return response;
  const isPlain = response.headers.get("Content-Type")?.startsWith("text/plain");
  throw new Error(
    isPlain ? (await response.text()).trim() : `TensorBoard answers ${response.status}; see what it prints.`,
  );
}

function explain(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
