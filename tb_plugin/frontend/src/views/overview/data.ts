// What the overview shows of the chosen run.

import { computed } from "@preact/signals";
import { readyValue } from "../../loadable.ts";
import { sorted } from "../../order.ts";
import type { Output } from "../../overview.ts";
import { type Column, numberAt, textAt } from "../../records.ts";
import * as state from "../../state.ts";
import { heads } from "../../worst.ts";

export const MOST_WORST = 5;
const TOTAL = "total_sqnr_db";
const NORMAL_DB = 25;

const names = computed(() => ["name", state.EFFECT, state.ADDED, TOTAL]);

/** Asked for in one go, so that they travel together. */
const asked = computed(() => state.columnsOf(names.value));

export const isReady = computed(() => [...asked.value.values()].every(({ state: is }) => is !== "loading"));

export const columns = computed((): Map<string, Column> => {
  const found = [...asked.value].flatMap(([name, column]): [string, Column][] =>
    column.state === "ready" ? [[name, column.value]] : [],
  );
  return new Map(found);
});

export const rows = computed(() => readyValue(state.header.value)?.rows ?? 0);

/** The column that ranks and colors. */
export const by = computed(() => columns.value.get(state.worstBy.value));

export const worst = computed((): number[] => {
  const all = Uint32Array.from(Array(rows.value).keys());
  return heads(sorted(all, state.sortWorst.value, columns.value), by.value, MOST_WORST);
});

export const nameOf = (row: number) => textAt(columns.value.get("name"), row);

export const trial = computed(
  () => readyValue(state.trials.value)?.find(({ run }) => run === state.run.value)?.trial ?? null,
);

export const output = computed((): Output => {
  const total = columns.value.get(TOTAL);
  const normalDb = total?.spec.normal?.[0] ?? NORMAL_DB;
  for (let row = rows.value - 1; row >= 0; row--) {
    const sqnrDb = numberAt(total, row);
    if (!Number.isNaN(sqnrDb)) return { op: nameOf(row), sqnrDb, normalDb };
  }
  return { op: "", sqnrDb: Number.NaN, normalDb };
});
