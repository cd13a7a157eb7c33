// All trials as one table, those that can be drawn, and what all charts of them share.

import { computed } from "@preact/signals";
import { type Point, paretoFront } from "./compare.ts";
import type { Axis } from "./components/Plot.tsx";
import type { Dot } from "./components/RunChart.tsx";
import { formatScore, withUnit } from "./format.ts";
import { readyValue } from "./loadable.ts";
import { numberAt } from "./records.ts";
import * as state from "./state.ts";
import { type TrialTable, trialTable } from "./trialtable.ts";

export const table = computed((): TrialTable => trialTable(readyValue(state.trials.value) ?? []));

interface Judged {
  run: string;
  row: number;
  accuracy: number;
}

/** Trials that can be drawn: with an accuracy, and all of the same direction. */
export const judged = computed((): Judged[] =>
  table.value.runs.flatMap(({ run, trial }, row) =>
    trial?.accuracy != null && (trial.lower_is_better ?? false) === table.value.lower
      ? [{ run, row, accuracy: trial.accuracy }]
      : [],
  ),
);
export const lines = computed(() => {
  const trials = judged.value.map(({ row }) => table.value.runs[row]!.trial!);
  const distinct = (values: (number | null | undefined)[]) => [...new Set(values.filter((value) => value != null))];
  return {
    baselines: distinct(trials.map(({ baseline }) => baseline)),
    targets: distinct(trials.map(({ target }) => target)),
  };
});
export const upAxis = computed((): Axis => {
  const { baselines, targets } = lines.value;
  const label = table.value.lower ? "Loss, lower is better" : "Accuracy";
  return { domain: padded([...judged.value.map(({ accuracy }) => accuracy), ...baselines, ...targets]), label };
});

export interface Tradeoff {
  drawn: Judged[];
  /** Of those that are drawn, and at the end of fp32 where it has the objective. */
  points: Point[];
  fp32: Point | null;
  /** Places among the points that no other beats; that of fp32 is behind the last of the drawn ones. */
  front: number[];
}

/** Accuracy against one objective. */
export function tradeoffBy(key: string, better: "higher" | "lower"): Tradeoff {
  const column = table.value.columns.get(`objectives.${key}`);
  const drawn = judged.value.filter(({ row }) => Number.isFinite(numberAt(column, row)));
  const own = drawn.map(({ row, accuracy }) => ({ x: numberAt(column, row), y: accuracy }));
  const x = table.value.fp32?.objectives?.[key];
  const reference = x == null ? null : { x, y: table.value.fp32?.accuracy ?? Number.NaN };
  const points = reference ? [...own, reference] : own;
  return { drawn, points, fp32: reference, front: paretoFront(points, better === "lower", table.value.lower) };
}

/** A dot for each trial of a tradeoff, and what it says. */
export function dotsOf({ drawn, points, front }: Tradeoff, spec: { label: string; unit: string }): Dot[] {
  const onFront = new Set(front);
  return drawn.map(({ run, accuracy }, i): Dot => {
    const text = [`${nameOfScore()} ${formatScore(accuracy)}`, `${spec.label} ${withUnit(points[i]!.x, spec.unit)}`];
    const marked = onFront.has(i);
    return { run, ...points[i]!, marked, text: marked ? [...text, "on the Pareto front"] : text };
  });
}

export function comparedKey(): string {
  return state.compared.value.length ? " Blue: compared." : "";
}

export function nameOfScore(): string {
  return table.value.lower ? "loss" : "accuracy";
}

export function padded(values: number[]): [number, number] {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const edge = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - edge, high + edge];
}
