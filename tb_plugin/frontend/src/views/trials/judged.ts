// The trials that can be drawn, and what all charts of them share.

import { computed } from "@preact/signals";
import type { Axis } from "../../components/Plot.tsx";
import * as state from "../../state.ts";
import { table } from "./picks.ts";

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
