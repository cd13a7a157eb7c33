// What the op table shows of the chosen run: its columns, its rows in their order, and which of them are selected.

import { computed, type Signal, signal } from "@preact/signals";
import { download, toCsv } from "../../csv.ts";
import { readyValue } from "../../loadable.ts";
import { filtered, sorted } from "../../order.ts";
import type { Column, TableHeader } from "../../records.ts";
import { type Scale, scaleOf } from "../../scale.ts";
import * as state from "../../state.ts";

/** Columns that are needed whether they are shown or not. */
const PLACE = ["added_sqnr_db", "arrived_sqnr_db", "total_sqnr_db"];
const ALWAYS = ["name", "module", "type", "verdict", "reason", "unit", "index", state.EFFECT, ...PLACE];

const known = computed((): TableHeader | undefined => readyValue(state.header.value));
const present = computed(() => new Set(known.value?.columns.map(({ name }) => name)));
export const shown = computed(() => {
  const here = state.columns.value.filter((name) => present.value.has(name));
  // Unless the user has chosen it, a column that is empty in a run that was not probed would only take room.
  return state.isProbed.value || !state.hasDefaultColumns.value ? here : here.filter((name) => name !== "sensitivity");
});
const needed = computed(() => {
  const sortedBy = state.sort.value.map(({ column }) => column);
  return [...new Set([...ALWAYS, ...shown.value, ...sortedBy])].filter((name) => present.value.has(name));
});
export const loaded = computed((): Map<string, Column> => {
  const found = new Map<string, Column>();
  for (const [name, column] of state.columnsOf(needed.value)) {
    if (column.state === "ready") found.set(name, column.value);
  }
  return found;
});
/** Columns that could not be read, with the reason. */
export const broken = computed((): Map<string, string> => {
  const found = [...state.columnsOf(needed.value)];
  return new Map(found.flatMap(([name, column]) => (column.state === "error" ? [[name, column.message]] : [])));
});
export const scales = computed((): Map<string, Scale | null> => {
  const numbers = [...loaded.value].filter(([, column]) => column.kind === "number");
  return new Map(numbers.map(([name, column]) => [name, column.kind === "number" ? scaleOf(column) : null]));
});
const passing = computed(() => filtered(known.value?.rows ?? 0, state.filter.value, loaded.value));
export const order = computed(() => sorted(passing.value, state.sort.value, loaded.value));
export const selected = signal<ReadonlySet<number>>(new Set());

/** The selected rows, or all that are shown. */
export function chosenCsv(): string {
  const rows = selected.value.size ? order.value.filter((row) => selected.value.has(row)) : order.value;
  return toCsv(
    shown.value.flatMap((name) => loaded.value.get(name) ?? []),
    rows,
  );
}

/** Every op and every column of the run as it is now, also those that are not shown; waits for what is not there yet. */
export function downloadAll({ run, rows, columns: specs }: TableHeader, problem: Signal<string>): void {
  const step = state.step.value;
  const all = computed(() => specs.map(({ name }) => state.column(name, run, step)));
  const stop = all.subscribe((columns) => {
    if (columns.some(({ state }) => state === "loading")) return;
    queueMicrotask(() => stop());
    const there = columns.flatMap((column) => (column.state === "ready" ? [column.value] : []));
    const missing = specs.filter((_, i) => columns[i]!.state === "error").map(({ name }) => name);
    problem.value = missing.length ? `Could not be read and are not in the file: ${missing.join(", ")}.` : "";
    download(`${run.replaceAll("/", "_") || "ops"}.csv`, toCsv(there, Array(rows).keys()));
  });
}
