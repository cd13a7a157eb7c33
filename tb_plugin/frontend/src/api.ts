// The server's routes as signals that fill themselves. The only module that fetches.

import { batch, type Signal, signal } from "@preact/signals";
import { failed, LOADING, type Loadable, ready } from "./loadable.ts";
import {
  type ChannelRow,
  type Column,
  type Container,
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

export interface RunInfo {
  name: string;
  kinds: Record<string, { version: number | null; steps?: number[]; wall_time: number }>;
}

/** What a request may ask about: a run as it was when the list of runs was read. */
export interface RunAt {
  run: string;
  /** null is the newest. */
  step: number | null;
  /** Changes when the run was written again, so that nothing stale is shown. */
  stamp: string;
}

const RUNS_PER_REQUEST = 20;
const base = new URL("..", import.meta.url);
const kept = new Map<string, Signal<Loadable<unknown>>>();

function resource<T>(key: string, start: (into: Signal<Loadable<T>>) => void): Signal<Loadable<T>> {
  let found = kept.get(key) as Signal<Loadable<T>> | undefined;
  if (!found) {
    found = signal<Loadable<T>>(LOADING);
    kept.set(key, found as Signal<Loadable<unknown>>);
    start(found);
  }
  return found;
}

/** Forget what belongs to runs that are gone or were written again, and what failed, so that it is tried again. */
export function forget(isCurrent: (stamp: string) => boolean): void {
  for (const [key, value] of kept) {
    if (!isCurrent(key.slice(0, key.indexOf(" "))) || value.peek().state === "error") kept.delete(key);
  }
}

export async function fetchRuns(): Promise<RunInfo[]> {
  return (await (await get("runs", [])).json()).runs;
}

interface Wanted {
  at: RunAt;
  name: string;
  into: Signal<Loadable<Column>>;
}

let queue: Wanted[] = [];

/** One column of one run. Columns that are asked for at the same time travel together. */
export function column(at: RunAt, name: string): Signal<Loadable<Column>> {
  return resource(`${at.stamp} column ${name} ${at.step} ${at.run}`, (into) => {
    if (!queue.length) queueMicrotask(sendQueue);
    queue.push({ at, name, into });
  });
}

function sendQueue(): void {
  const wanted = queue;
  queue = [];
  const byRun = Map.groupBy(wanted, ({ at }) => `${at.step} ${at.run}`);
  const byNames = Map.groupBy(byRun.values(), (group) => `${group[0]!.at.step} ${group.map((w) => w.name).join()}`);
  for (const groups of byNames.values()) {
    for (let i = 0; i < groups.length; i += RUNS_PER_REQUEST) void fetchColumns(groups.slice(i, i + RUNS_PER_REQUEST));
  }
}

async function fetchColumns(groups: Wanted[][]): Promise<void> {
  const wanted = groups.flat();
  const { at } = wanted[0]!;
  const query: [string, string][] = groups.length > 1 ? groups.map(([first]) => ["run", first!.at.run]) : runQuery(at);
  query.push(...groups[0]!.map(({ name }): [string, string] => ["name", name]), ...stepQuery(at));
  try {
    const { parts, blobs } = await getContainer("columns", query);
    const unzipped = new Map<number, Promise<ArrayBuffer>>();
    const read = async (part: Part): Promise<Loadable<Column>> => {
      if (part.error !== undefined) return failed(part.error);
      const at = part.blob!;
      if (!unzipped.has(at)) unzipped.set(at, gunzip(blobs[at]!));
      return ready(readColumn(part.column!, await unzipped.get(at)!, part.rows!));
    };
    const found = new Map(await Promise.all(parts.map(async (p) => [`${p.name} ${p.run}`, await read(p)] as const)));
    batch(() => {
      for (const { at, name, into } of wanted) {
        into.value = found.get(`${name} ${at.run}`) ?? failed(`the server sent no column ${name} for ${at.run}`);
      }
    });
  } catch (error) {
    batch(() => {
      for (const { into } of wanted) into.value = failed(explain(error));
    });
  }
}

/** Which columns the table of a run has, and what was measured. */
export function header(at: RunAt): Signal<Loadable<TableHeader>> {
  return resource(`${at.stamp} header ${at.step} ${at.run}`, (into) =>
    settle(into, async () => {
      const { headers } = await getContainer("columns", [...runQuery(at), ["header", "1"], ...stepQuery(at)]);
      const found = headers![0]!;
      if ("error" in found) throw new Error(found.error);
      return found;
    }),
  );
}

/** A whole record of one run, such as its suggestions. */
export function record<K extends keyof RowKinds>(kind: K, at: RunAt): Signal<Loadable<Rows<K>>> {
  return resource(`${at.stamp} ${kind} ${at.step} ${at.run}`, (into) =>
    settle(into, async () => {
      const { parts, blobs } = await getContainer("record", [...runQuery(at), ["kind", kind], ...stepQuery(at)]);
      return readRecord<K>(parts[0]!, blobs);
    }),
  );
}

/** One small record of many runs at once, such as their trials. */
export function recordOfMany<K extends keyof RowKinds>(
  kind: K,
  runs: RunAt[],
): Signal<Loadable<Map<string, Loadable<Rows<K>>>>> {
  const stamp = runs.map((at) => at.stamp).join();
  return resource(`${stamp} many ${kind}`, (into) =>
    settle(into, async () => {
      const found = new Map<string, Loadable<Rows<K>>>();
      for (let i = 0; i < runs.length; i += RUNS_PER_REQUEST * 5) {
        const query = runs.slice(i, i + RUNS_PER_REQUEST * 5).map((at): [string, string] => ["run", at.run]);
        const { parts, blobs } = await getContainer("record", [...query, ["kind", kind]]);
        for (const part of parts) {
          const rows = await readRecord<K>(part, blobs).then(ready, (error) => failed(explain(error)));
          found.set(part.run, rows);
        }
      }
      return found;
    }),
  );
}

export function histograms(at: RunAt, op: string): Signal<Loadable<HistogramRow[]>> {
  return rowsOfOp("histogram", at, op);
}

export function channels(at: RunAt, op: string): Signal<Loadable<ChannelRow[]>> {
  return rowsOfOp("channels", at, op);
}

function rowsOfOp<T extends { op: string }>(route: string, at: RunAt, op: string): Signal<Loadable<T[]>> {
  return resource(`${at.stamp} ${route} ${at.step} ${at.run} ${op}`, (into) =>
    settle(into, async () => {
      const { parts, blobs } = await getContainer(route, [...runQuery(at), ["op", op], ...stepQuery(at)]);
      const part = parts[0]!;
      if (part.error !== undefined) throw new Error(part.error);
      return (await readRows<T>([blobs[part.blob!]!])).filter((row) => row.op === op);
    }),
  );
}

async function readRecord<K extends keyof RowKinds>(part: Part, blobs: Container["blobs"]): Promise<Rows<K>> {
  if (part.error !== undefined) throw new Error(part.error);
  const rows = await readRows<RowKinds[K]>(part.blobs!.map((i) => blobs[i]!));
  return { rows, meta: (part.meta ?? {}) as Meta, step: part.step! };
}

function settle<T>(into: Signal<Loadable<T>>, work: () => Promise<T>): void {
  work().then(
    (value) => {
      into.value = ready(value);
    },
    (error) => {
      into.value = failed(explain(error));
    },
  );
}

/** With the stamp the server need not look again where the run's records are. */
function runQuery({ run, stamp }: RunAt): [string, string][] {
  return [
    ["run", run],
    ["stamp", stamp],
  ];
}

function stepQuery({ step }: RunAt): [string, string][] {
  return step === null ? [] : [["step", String(step)]];
}

async function getContainer(route: string, query: [string, string][]): Promise<Container> {
  return readContainer(await (await get(route, query)).arrayBuffer());
}

async function get(route: string, query: [string, string][]): Promise<Response> {
  const url = new URL(route, base);
  url.search = new URLSearchParams(query).toString();
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${(await response.text()).trim() || response.statusText} (${response.status})`);
  return response;
}

function explain(error: unknown): string {
  if (error instanceof TypeError) return "TensorBoard does not answer. Is it still running?";
  return error instanceof Error ? error.message : String(error);
}
