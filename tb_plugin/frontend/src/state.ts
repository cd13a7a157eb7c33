// All of the page's state: a few signals that the link mirrors, and what follows from them.

import { batch, computed, effect, type Signal, signal } from "@preact/signals";
import * as api from "./api.ts";
import { recall, remember } from "./chosencolumns.ts";
import { recallTool, rememberTool } from "./chosentool.ts";
import { queryOf, type Shown, shownBy } from "./link.ts";
import { failed, LOADING, type Loadable, ready, readyValue } from "./loadable.ts";
import {
  type Column,
  type RowKinds,
  type Rows,
  rowIndex,
  sameNumbers,
  type TableHeader,
  type Trial,
} from "./records.ts";
import { linkTo, onLink, onReload, readLink, writeLink } from "./tensorboard.ts";
import { ADDED, EFFECT, worstFirst } from "./worst.ts";

export { columns, DEFAULT_COLUMNS, hasDefaultColumns, pinned } from "./chosencolumns.ts";
export { tool } from "./chosentool.ts";
export type { Filter, Matrix, SortKey } from "./link.ts";
export { LARGEST_FIRST, MOST_COMPARED } from "./link.ts";
export { ADDED, EFFECT } from "./worst.ts";

/** How many runs can be picked for a comparison side by side. */
export const MOST_PICKED = 6;
const AT_FIRST = shownBy(new URLSearchParams(), []);

export const runs = signal<Loadable<api.RunInfo[]>>(LOADING);
/** One of the views that start() was told. */
export const view = signal("");
const chosenRun = signal("");
/** null is the newest step. */
export const step = signal<number | null>(null);
export const op = signal("");
export const filter = signal(AT_FIRST.filter);
/** null until the reader has sorted the ops. */
export const chosenSort = signal(AT_FIRST.sort);
/** Runs to compare, the base first. */
export const compared = signal<string[]>([]);
/** The column that comparisons and the graph's colors show; empty until the reader has chosen one. */
export const chosenMetric = signal(AT_FIRST.metric);
/** A column of texts that colors the graph instead; comparisons could do nothing with it. */
export const paint = signal("");
/** How the comparison of trials shows its ops; sorted by "name", "largest" or runColumn() of a run. */
export const matrix = signal(AT_FIRST.matrix);
/** Ranks of the suggestions that are ticked. */
export const ticked = signal<number[]>([]);

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

/** Whether the steps are one diagnosis, to which a probe or a profile added columns: nothing that was compared differs. */
export const isOneDiagnosis = computed((): Loadable<boolean> => {
  const [first, last] = [steps.value[0], steps.value.at(-1)];
  if (first === undefined || first === last) return ready(true);
  const pairs = [ADDED, "total_sqnr_db"].map((name) => [first, null].map((at) => column(name, run.value, at)));
  if (pairs.flat().some(({ state }) => state === "loading")) return LOADING;
  return ready(
    pairs.every((pair) => {
      const [before, after] = pair.map(readyValue);
      return before !== undefined && after !== undefined && sameNumbers(before, after);
    }),
  );
});

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

/** Whether the chosen run has measured what its ops do at the output; until it is known, it has not. */
export const isProbed = computed(() => isFilled(EFFECT));

/** Whether the chosen run has timed its ops. */
export const isTimed = computed(() => isFilled("time_int8_us"));

function isFilled(name: string): boolean {
  const found = column(name);
  return found.state === "ready" && hasNumbers(found.value);
}

/** By which column ops are worst, in every view: the effect at the output where it was measured, else what they add. */
export const worstBy = computed(() => (isProbed.value ? EFFECT : ADDED));

/** Whether that is known yet. */
export const isRanked = computed(() => column(EFFECT).state !== "loading");

export const sortWorst = computed(() => worstFirst(worstBy.value));
export const sort = computed(() => chosenSort.value ?? sortWorst.value);

/** What comparisons of runs show; the effect at the output is seldom measured in several of them. */
export const metric = computed(() => chosenMetric.value || ADDED);

/** Whether any error of its ops is known; until the numbers are there, and in tables without the column, it is. */
export const isMeasured = computed(() =>
  ["total_sqnr_db", "w_sqnr_db"].map((name) => column(name)).some((c) => c.state !== "ready" || hasNumbers(c.value)),
);

function hasNumbers(found: Column): boolean {
  return found.kind === "number" && found.values.some((value) => !Number.isNaN(value));
}
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
  const shown: Shown = {
    view: view.value,
    run: run.value || chosenRun.value,
    step: step.value,
    op: op.value,
    filter: filter.value,
    sort: chosenSort.value,
    compared: compared.value,
    metric: chosenMetric.value,
    paint: paint.value,
    matrix: matrix.value,
  };
  return queryOf(shown, views);
}

function followLink(query: URLSearchParams): void {
  const shown = shownBy(query, views);
  view.value = shown.view;
  chosenRun.value = shown.run;
  step.value = shown.step;
  op.value = shown.op;
  filter.value = shown.filter;
  chosenSort.value = shown.sort;
  compared.value = shown.compared;
  chosenMetric.value = shown.metric;
  paint.value = shown.paint;
  matrix.value = shown.matrix;
}

/** Ticks are ranks among the suggestions of one run at one step. */
function untick(): void {
  void [run.value, step.value, infoOf(run.value)?.kinds.suggestions?.wall_time];
  ticked.value = [];
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

let views: readonly string[] = [];

/** Start to follow TensorBoard, the link and what was remembered. Of the views, the first opens. */
export function start(known: readonly string[]): void {
  views = known;
  recall();
  recallTool();
  followLink(readLink() ?? new URLSearchParams());
  let shown = view.value;
  effect(() => {
    // Going back leads to the view before; small steps such as a sort would only be in the way.
    writeLink(linkState(), shown !== view.value);
    shown = view.value;
  });
  effect(remember);
  effect(rememberTool);
  effect(untick);
  onLink((link) => batch(() => followLink(link)));
  onReload(() => void reload());
  void reload();
}
