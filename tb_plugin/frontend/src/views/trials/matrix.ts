// The ops of the compared runs side by side: everything that is computed once for all cells.

import { computed } from "@preact/signals";
import {
  aligned,
  CONFIG,
  type Config,
  changedConfig,
  difference,
  largestDifference,
  runColumn,
  spanOf,
  unionOfOps,
  usableSort,
} from "../../compare.ts";
import { type Loadable, readyValue } from "../../loadable.ts";
import { matcher, sorted } from "../../order.ts";
import {
  type Column,
  type ColumnSpec,
  numberColumn,
  type TextColumn,
  textAt,
  textColumn,
  whyNull,
} from "../../records.ts";
import { makeScale, sampled } from "../../scale.ts";
import * as state from "../../state.ts";
import { fallbackOf } from "../../trialtable.ts";

const CONFIG_COLUMNS = Object.keys(CONFIG);

/** Runs of the comparison that are there, the base first. */
export const runs = computed(() => {
  const there = new Set(state.shownRuns.value.map(({ name }) => name));
  return state.compared.value.filter((name) => there.has(name));
});
export const gone = computed(() => state.compared.value.filter((name) => !runs.value.includes(name)));
export const diagnosed = computed(() => runs.value.map((run) => state.has("ops", run)));

const nameColumns = computed(() => runs.value.map((run, i) => (diagnosed.value[i] ? state.column("name", run) : null)));

/** Whether the ops of all runs are there, or could not be read. */
export const settled = computed(() => nameColumns.value.every((names) => names?.state !== "loading"));

export const union = computed(() =>
  unionOfOps(
    nameColumns.value.map((names) => {
      const found = names && readyValue(names);
      return found?.kind === "text" ? Array.from(found.codes, (code) => found.texts[code]!) : [];
    }),
  ),
);

/** What each run's table is, for the metrics to choose from. */
export const header = computed((): Loadable<{ columns: ColumnSpec[] }> | null => {
  const first = runs.value[diagnosed.value.indexOf(true)];
  return first === undefined ? null : state.headerOf(first);
});
export const metrics = computed((): ColumnSpec[] => {
  const columns = header.value ? readyValue(header.value)?.columns : undefined;
  return (columns ?? []).filter(({ type }) => type !== "text");
});
export const metric = computed(
  () =>
    metrics.value.find(({ name }) => name === state.metric.value) ?? metrics.value[0] ?? { name: state.metric.value },
);

const found = computed(() =>
  runs.value.map((run, i) =>
    diagnosed.value[i] && metrics.value.length ? state.column(metric.value.name, run) : null,
  ),
);

export const values = computed(() =>
  union.value.rows.map((rows, i) => {
    const column = found.value[i] && readyValue(found.value[i]);
    return aligned(column?.kind === "number" ? column.values : new Float64Array(rows.length).fill(Number.NaN), rows);
  }),
);
export const differences = computed(() => values.value.map((one) => difference(one, values.value[0]!)));
export const scale = computed(() => makeScale(metric.value, values.value.flatMap(sampled).filter(Number.isFinite)));
export const span = computed(() => spanOf(differences.value.slice(1)));

/** Of each run the config columns; null until all of them are there. */
const configs = computed((): (Map<string, TextColumn> | null)[] =>
  runs.value.map((run, i) => {
    if (!diagnosed.value[i]) return null;
    const columns = CONFIG_COLUMNS.map((name) => readyValue(state.column(name, run)));
    const texts = columns.filter((column) => column?.kind === "text");
    return texts.length === CONFIG_COLUMNS.length ? new Map(texts.map((column) => [column.spec.name, column])) : null;
  }),
);

/** Of each run which ops have another config than in the base. */
export const changed = computed((): (Uint8Array | null)[] =>
  configs.value.map((config, i) => {
    const base = configs.value[0];
    if (i === 0 || !config || !base) return null;
    const { rows } = union.value;
    const all = CONFIG_COLUMNS.map((name) => changedConfig(base.get(name)!, rows[0]!, config.get(name)!, rows[i]!));
    return all[0]!.map((_, row) => (all.some((one) => one[row]) ? 1 : 0));
  }),
);
export const largest = computed(() => largestDifference(values.value, changed.value));
export const changedCount = computed(() => {
  let count = 0;
  for (let row = 0; row < union.value.names.length; row++) if (isChanged(row)) count++;
  return count;
});

function isChanged(row: number): boolean {
  return changed.value.some((one) => one?.[row]);
}

export function configOf(run: number, row: number): Config {
  const at = union.value.rows[run]![row]!;
  return Object.fromEntries(CONFIG_COLUMNS.map((name) => [name, textAt(configs.value[run]?.get(name), at)]));
}

/** Columns of an error that an op which stays in fp32 does not add. */
const OWN_ERRORS = new Set([state.ADDED, state.EFFECT]);

const kept = computed(() => {
  const trials = new Map((readyValue(state.trials.value) ?? []).map(({ run, trial }) => [run, trial]));
  return runs.value.map((run) => new Set(fallbackOf(trials.get(run))));
});

/** Whether the run's trial keeps an op in fp32, so that its missing error is none. */
export function isKept(run: number, row: number): boolean {
  return OWN_ERRORS.has(metric.value.name) && kept.value[run]!.has(union.value.names[row]!);
}

/** Why a cell has no number, or that it is on its way. */
export function whyMissing(run: number, row: number): string {
  const name = runs.value[run]!;
  if (!diagnosed.value[run]) return `${name} holds no diagnosis`;
  const names = nameColumns.value[run];
  if (names?.state === "error") return names.message;
  const at = union.value.rows[run]![row]!;
  if (at < 0) return `${name} has no such op`;
  const column = found.value[run];
  if (!column || column.state === "loading") return "";
  if (column.state === "error") return column.message;
  return whyNull(column.value, at, readyValue(state.column("reason", name))) || "no value was logged";
}

/** By what the rows are sorted; a run that is no longer compared sorts nothing. */
export const sort = computed(() => usableSort(state.matrix.value.sort, runs.value, state.LARGEST_FIRST));

/** Columns that the rows can be sorted by; each is made when it is first needed. */
const byName = computed(() => textColumn({ name: "name" }, union.value.names));
const byRun = computed(() => (state.matrix.value.difference ? differences.value : values.value));

/** Place of a run in `runs` by the name of its column; -1 if it is not there. */
export function placeOf(column: string): number {
  return runs.value.findIndex((run) => runColumn(run) === column);
}

function sortColumn(id: string): Column {
  if (id === "name") return byName.value;
  if (id === "largest") return numberColumn({ name: id }, Array.from(largest.value, Math.abs));
  return { kind: "number", spec: metric.value, values: byRun.value[placeOf(id)]! };
}

const passing = computed((): Uint32Array => {
  const { text, changed: onlyChanged } = state.matrix.value;
  const { names } = union.value;
  const matches = matcher({ text, regex: false });
  const kept = new Uint32Array(names.length);
  let count = 0;
  for (let row = 0; row < names.length; row++) {
    if (onlyChanged && !isChanged(row)) continue;
    if (typeof matches === "string" || matches(names[row]!)) kept[count++] = row;
  }
  return kept.subarray(0, count);
});

export const order = computed((): Uint32Array => {
  const columns = new Map(sort.value.map(({ column }) => [column, sortColumn(column)]));
  return sorted(passing.value, sort.value, columns);
});

/** What could not be read, run by run. */
export const troubles = computed(() =>
  runs.value.flatMap((run, i) => {
    if (!diagnosed.value[i]) return [`${run} holds no diagnosis, so its column is empty.`];
    const column = [nameColumns.value[i], found.value[i]].find((one) => one?.state === "error");
    return column?.state === "error" ? [`${run}: ${column.message}`] : [];
  }),
);
