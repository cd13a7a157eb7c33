// All of the page's state: a few signals that the link mirrors, and what follows from them.

import { batch, computed, effect, type Signal, signal } from "@preact/signals";
import * as api from "./api.ts";
import { failed, LOADING, type Loadable, ready, readyValue } from "./loadable.ts";
import { type Column, type RowKinds, type Rows, rowIndex, type TableHeader, type Trial } from "./records.ts";
import { linkTo, onReload, readLink, writeLink } from "./tensorboard.ts";

export const VIEWS = ["ops", "suggestions", "trials", "profile", "graph"] as const;
export type View = (typeof VIEWS)[number];

export interface SortKey {
  column: string;
  descending: boolean;
}

export interface Filter {
  text: string;
  regex: boolean;
  types: string[];
  verdicts: string[];
}

export interface Matrix {
  difference: boolean;
  changed: boolean;
  text: string;
  sort: SortKey[];
}

export const LARGEST_FIRST: SortKey[] = [{ column: "largest", descending: true }];

export const DEFAULT_COLUMNS = [
  "name",
  "type",
  "verdict",
  "sensitivity",
  "added_sqnr_db",
  "arrived_sqnr_db",
  "total_sqnr_db",
  "reason",
  "a_rmse_lsb",
  "a_clipped",
  "a_channel_ratio",
  "a_worst_channel_sqnr_db",
  "w_sqnr_db",
  "w_channel_ratio",
  "act_dtype",
  "weight_dtype",
];
/** How many runs can be picked for a comparison side by side. */
export const MOST_PICKED = 6;
/** How many runs the heat map of ops by trials takes. */
export const MOST_COMPARED = 20;

const WORST_FIRST: SortKey[] = [{ column: "added_sqnr_db", descending: false }];

export const runs = signal<Loadable<api.RunInfo[]>>(LOADING);
export const view = signal<View>("ops");
const chosenRun = signal("");
/** null is the newest step. */
export const step = signal<number | null>(null);
export const op = signal("");
export const filter = signal<Filter>({ text: "", regex: false, types: [], verdicts: [] });
export const sort = signal<SortKey[]>(WORST_FIRST);
/** Columns of the op table in their order; the first `pinned` of them stay in sight. */
export const columns = signal<string[]>(DEFAULT_COLUMNS);
export const pinned = signal(1);
/** Runs to compare, the base first. */
export const compared = signal<string[]>([]);
/** The column that comparisons and the graph's colours show. */
export const metric = signal("added_sqnr_db");
/** A column of texts that colours the graph instead; comparisons could do nothing with it. */
export const paint = signal("");
/** How the comparison of trials shows its ops; sorted by "name", "largest" or runColumn() of a run. */
export const matrix = signal<Matrix>({ difference: false, changed: false, text: "", sort: LARGEST_FIRST });
/** Ranks of the suggestions that are ticked. */
export const ticked = signal<number[]>([]);
export const tool = signal("");

/** Runs that hold a diagnosis, a trial or a profile. */
export const shownRuns = computed(() =>
  (readyValue(runs.value) ?? []).filter((run) => Object.keys(run.kinds).length > 0),
);

export const run = computed(() => {
  const names = shownRuns.value.map(({ name }) => name);
  if (names.includes(chosenRun.value)) return chosenRun.value;
  const diagnosed = shownRuns.value.find(({ kinds }) => kinds.ops);
  return diagnosed?.name ?? names[0] ?? "";
});

export function chooseRun(name: string): void {
  batch(() => {
    chosenRun.value = name;
    step.value = null;
  });
}

/** A run that the link or the reader asked for and that is not there. */
export const missingRun = computed(() =>
  runs.value.state === "ready" && chosenRun.value && chosenRun.value !== run.value ? chosenRun.value : "",
);

export const steps = computed(() => infoOf(run.value)?.kinds.ops?.steps ?? []);

function infoOf(name: string): api.RunInfo | undefined {
  return shownRuns.value.find((info) => info.name === name);
}

const NO_RUN = signal<Loadable<never>>(failed("this run is no longer there"));
const NOTHING_LOGGED = signal<Loadable<never>>(failed("nothing of the kind was logged in this run"));

/** Asks for a record of a run, if it has one. What it gives follows the run: it is read again when it was written again. */
function ask<T>(
  kind: string,
  name: string,
  atStep: number | null,
  get: (where: api.RunAt) => Signal<Loadable<T>>,
): Loadable<T> {
  const info = infoOf(name);
  if (!info) return NO_RUN.value;
  const stamp = info.kinds[kind]?.wall_time;
  return (stamp === undefined ? NOTHING_LOGGED : get({ run: name, step: atStep, stamp: String(stamp) })).value;
}

function stepOf(name: string): number | null {
  return name === run.value ? step.value : null;
}

/** Data of the chosen run and step; read them inside components, which then follow along. */
export const header = computed(() => headerOf(run.value));

/** The same of any run, at its newest step. */
export function headerOf(ofRun: string): Loadable<TableHeader> {
  return ask("ops", ofRun, stepOf(ofRun), api.header);
}

export function column(name: string, ofRun: string = run.value, atStep = stepOf(ofRun)): Loadable<Column> {
  return ask("ops", ofRun, atStep, (where) => api.column(where, name));
}

/** Whether the chosen run has measured what its ops do at the output. */
export const isProbed = computed(() => {
  const found = column("sensitivity");
  return found.state === "ready" && hasNumbers(found.value);
});

/** Whether any error of its ops is known; until the numbers are there, and in tables without the column, it is. */
export const isMeasured = computed(() =>
  ["total_sqnr_db", "w_sqnr_db"].map((name) => column(name)).some((c) => c.state !== "ready" || hasNumbers(c.value)),
);

function hasNumbers(found: Column): boolean {
  return found.kind === "number" && found.values.some((value) => !Number.isNaN(value));
}
export const hasDefaultColumns = computed(() => columns.value.join() === DEFAULT_COLUMNS.join());

export function columnsOf(names: string[]): Map<string, Loadable<Column>> {
  return new Map(names.map((name) => [name, column(name)]));
}

/** Whether the run has such a record at all. */
export function has(kind: string, ofRun: string = run.value): boolean {
  return infoOf(ofRun)?.kinds[kind] !== undefined;
}

export function record<K extends keyof RowKinds>(kind: K): Loadable<Rows<K>> {
  return ask(kind, run.value, kind === "profile" ? null : step.value, (where) => api.record(kind, where));
}

export function histograms(name: string) {
  return ask("histograms", run.value, step.value, (where) => api.histograms(where, name));
}

export function channels(name: string) {
  return ask("channels", run.value, step.value, (where) => api.channels(where, name));
}

/** Row of each op in the chosen run's table. */
export const rowOf = computed((): Map<string, number> => {
  const names = readyValue(column("name"));
  return names ? rowIndex(names) : new Map();
});

export interface RunTrial {
  run: string;
  trial: Trial | null;
  error: string;
}

/** All runs with their trial, in the order of their names; runs without one are there with null. */
export const trials = computed((): Loadable<RunTrial[]> => {
  if (runs.value.state !== "ready") return runs.value;
  const found = shownRuns.value.map(({ name, kinds }) => {
    const rows = kinds.trial ? ask("trial", name, null, (where) => api.record("trial", where)) : null;
    const trial = rows && readyValue(rows)?.rows[0];
    return {
      run: name,
      trial: trial ?? null,
      error: rows?.state === "error" ? rows.message : "",
      isLoading: rows?.state === "loading",
    };
  });
  return found.length && found.every(({ isLoading }) => isLoading)
    ? LOADING
    : ready(found.map(({ isLoading, ...known }) => known));
});

/** The names of the ops of the chosen run; empty until they are there. */
export const opNames = computed((): ReadonlySet<string> => new Set(rowOf.value.keys()));

export function openOp(name: string): void {
  op.value = name;
}

/** A link that opens the page as it is now, with some things changed. */
export function link(changes: Record<string, string> = {}): string {
  const query = linkState();
  if ("run" in changes) query.delete("step"); // another run has other steps
  for (const [key, value] of Object.entries(changes)) query.set(key, value);
  return linkTo(query);
}

function linkState(): URLSearchParams {
  const query = new URLSearchParams();
  const put = (key: string, value: string) => value && query.set(key, value);
  put("view", view.value === "ops" ? "" : view.value);
  put("run", run.value || chosenRun.value);
  put("step", step.value === null ? "" : String(step.value));
  put("op", op.value);
  put("filter", filter.value.text);
  put("regex", filter.value.regex ? "1" : "");
  put("types", listText(filter.value.types));
  put("verdicts", listText(filter.value.verdicts));
  put("sort", sortText(sort.value) || "none");
  put("compare", listText(compared.value));
  if (compared.value.length) {
    put("difference", matrix.value.difference ? "1" : "");
    put("changed", matrix.value.changed ? "1" : "");
    put("ops", matrix.value.text);
    put("order", matrix.value.sort === LARGEST_FIRST ? "" : sortText(matrix.value.sort) || "graph");
  }
  put("metric", metric.value === "added_sqnr_db" ? "" : metric.value);
  put("paint", paint.value);
  return query;
}

/** One key for a list: TensorBoard keeps only the last of several equal ones. */
function listText(values: string[]): string {
  return values.map(encodeURIComponent).join("|");
}

function listOf(text: string | null): string[] {
  const decode = (part: string) => {
    try {
      return [decodeURIComponent(part)];
    } catch {
      return []; // a link that somebody typed
    }
  };
  return (text ?? "").split("|").filter(Boolean).flatMap(decode);
}

function sortText(keys: SortKey[]): string {
  return keys.map(({ column, descending }) => (descending ? "-" : "") + column).join(",");
}

function sortOf(text: string): SortKey[] {
  const keys = text.split(",").filter(Boolean);
  return keys.map((key) => ({ column: key.replace(/^-/, ""), descending: key.startsWith("-") }));
}

function followLink(query: URLSearchParams): void {
  const wanted = query.get("view") as View;
  view.value = VIEWS.includes(wanted) ? wanted : "ops";
  chosenRun.value = query.get("run") ?? "";
  const atStep = Number.parseInt(query.get("step") ?? "", 10);
  step.value = Number.isNaN(atStep) ? null : atStep;
  op.value = query.get("op") ?? "";
  filter.value = {
    text: query.get("filter") ?? "",
    regex: query.get("regex") === "1",
    types: listOf(query.get("types")),
    verdicts: listOf(query.get("verdicts")),
  };
  const keys = query.get("sort");
  sort.value = keys === "none" ? [] : keys ? sortOf(keys) : WORST_FIRST;
  compared.value = [...new Set(listOf(query.get("compare")))].slice(0, MOST_COMPARED);
  metric.value = query.get("metric") ?? "added_sqnr_db";
  paint.value = query.get("paint") ?? "";
  const order = query.get("order") ?? "";
  matrix.value = {
    difference: query.get("difference") === "1",
    changed: query.get("changed") === "1",
    text: query.get("ops") ?? "",
    sort: order === "graph" ? [] : order ? sortOf(order) : LARGEST_FIRST,
  };
}

/** Ticks are ranks among the suggestions of one run at one step. */
function untick(): void {
  void [run.value, step.value, infoOf(run.value)?.kinds.suggestions?.wall_time];
  ticked.value = [];
}

const REMEMBERED = "inc-tb.quantization.columns";

function remember(): void {
  try {
    const chosen = hasDefaultColumns.value ? undefined : columns.value;
    localStorage.setItem(REMEMBERED, JSON.stringify({ columns: chosen, pinned: pinned.value }));
  } catch {
    // Browsers may forbid storage in frames; then the columns last as long as the page.
  }
}

function recall(): void {
  try {
    const found = JSON.parse(localStorage.getItem(REMEMBERED) ?? "{}");
    if (Array.isArray(found.columns) && found.columns.includes("name")) columns.value = found.columns;
    if (Number.isInteger(found.pinned)) pinned.value = found.pinned;
  } catch {
    // Whatever is stored there is not ours.
  }
}

/** Why the list of runs could not be read again; what is shown may be old. */
export const trouble = signal("");
let reloads = 0;

export async function reload(): Promise<void> {
  const turn = ++reloads;
  const found = await api.fetchRuns().then(ready, (error: Error) => failed(error.message));
  if (turn !== reloads) return; // a later one is under way
  batch(() => {
    api.forgetFailures();
    if (found.state === "ready" || runs.value.state !== "ready") runs.value = found;
    trouble.value = found.state === "error" ? found.message : "";
  });
}

/** Start to follow TensorBoard, the link and what was remembered. */
export function start(): void {
  recall();
  followLink(readLink() ?? new URLSearchParams());
  let shown = view.value;
  effect(() => {
    // Going back leads to the view before; small steps such as a sort would only be in the way.
    writeLink(linkState(), shown !== view.value);
    shown = view.value;
  });
  effect(remember);
  effect(untick);
  window.parent.addEventListener("hashchange", () => {
    const link = readLink();
    if (link) batch(() => followLink(link));
  });
  onReload(() => void reload());
  void reload();
}
