// The table of trials as columns, so that it sorts and copies as the op table does. Pure functions.

import { bestSoFar, drop, targetMet } from "./compare.ts";
import { objective } from "./objectives.ts";
import { type Column, type ColumnSpec, natural, numberColumn, type Trial, textColumn } from "./records.ts";
import type { RunTrial } from "./state.ts";

/** A config may hold a key for every op; so many columns are no table any more. */
export const MOST_CONFIG = 30;

export interface TrialTable {
  /** In the order in which they were tried, as their names tell. */
  runs: RunTrial[];
  /** The fp32 model as the trials tell of it, which is the row behind those of the runs; null where they do not. */
  fp32: Trial | null;
  columns: Map<string, Column>;
  objectives: string[];
  /** Whether the accuracies are losses. */
  lower: boolean;
  /** Some are losses and some are not. */
  mixed: boolean;
  hiddenConfig: string[];
  /** What all trials were told alike, as "key value": a column of it would say nothing. */
  sameConfig: string[];
}

export function trialTable(found: RunTrial[]): TrialTable {
  const runs = found.toSorted((a, b) => natural.compare(a.run, b.run));
  const fp32 = fp32Of(runs);
  const tried = runs.map(({ trial }) => trial);
  const trials = fp32 ? [...tried, fp32] : tried;
  const names = runs.map(({ run }) => run);
  const judged = trials.filter((trial) => trial?.accuracy != null);
  const lower = judged[0]?.lower_is_better ?? false;
  const drops = trials.map((trial) => (trial ? (drop(trial)?.absolute ?? null) : null));
  const met = trials.map((trial) => (trial ? targetMet(trial) : null));
  const objectives = keysOf(runs, "objectives");
  const { config, sameConfig } = configOf(runs);
  const columns: Column[] = [
    textColumn(RUN, fp32 ? [...names, fp32.name] : names),
    numberColumn(
      { ...ACCURACY, better: lower ? "lower" : "higher", unit: lower ? "a loss" : "as evaluated" },
      trials.map((trial) => trial?.accuracy),
    ),
    numberColumn(DROP, drops),
    textColumn(
      TARGET,
      met.map((one) => (one === null ? "" : one ? "met" : "missed")),
    ),
    numberColumn({ ...BEST, better: lower ? "lower" : "higher", unit: lower ? "a loss" : "as evaluated" }, [
      ...bestSoFar(tried).map((best) => best?.value),
      ...(fp32 ? [null] : []),
    ]),
    numberColumn(
      FALLBACK,
      trials.map((trial) => (trial && trial !== fp32 ? fallbackOf(trial).length : null)),
    ),
    ...(trials.some((trial) => trial?.int8_macs != null)
      ? [
          numberColumn(
            INT8_MACS,
            trials.map((trial) => trial?.int8_macs),
          ),
        ]
      : []),
    numberColumn(
      WALL,
      trials.map((trial) => trial?.wall_s),
    ),
    ...objectives.map((key) =>
      numberColumn(
        objective(key),
        trials.map((trial) => trial?.objectives?.[key]),
      ),
    ),
    ...config.slice(0, MOST_CONFIG).map((key) =>
      textColumn(
        configSpec(key),
        trials.map((trial) => asText(trial?.config?.[key])),
      ),
    ),
    ...(trials.some((trial) => trial?.notes?.length)
      ? [
          textColumn(
            NOTES,
            trials.map((trial) => trial?.notes?.join(" · ") ?? ""),
          ),
        ]
      : []),
  ];
  return {
    runs,
    fp32,
    columns: new Map(columns.map((column) => [column.spec.name, column])),
    objectives,
    lower,
    mixed: judged.some((trial) => (trial?.lower_is_better ?? false) !== lower),
    hiddenConfig: config.slice(MOST_CONFIG),
    sameConfig,
  };
}

const RUN: ColumnSpec = { name: "run", type: "text", label: "Run", help: "The run's folder below the log directory." };
const ACCURACY: ColumnSpec = {
  name: "accuracy",
  label: "Accuracy",
  help: "What the evaluation of this trial returned, in the unit that it has there.",
};
const DROP: ColumnSpec = {
  name: "drop",
  label: "Drop",
  unit: "against baseline",
  better: "lower",
  help: "How much worse than the baseline, the accuracy of the fp32 model; below zero the trial is better than that.",
};
const TARGET: ColumnSpec = {
  name: "target",
  type: "text",
  label: "Target",
  help: "Whether the trial reaches the accuracy that was asked for.",
};
const BEST: ColumnSpec = {
  name: "best",
  label: "Best so far",
  help: "The best accuracy up to this trial, in the order of the runs' names; ★ marks a trial that was the best yet.",
};
const FALLBACK: ColumnSpec = {
  name: "fallback",
  label: "In fp32",
  unit: "ops",
  better: "lower",
  help: "How many ops the trial keeps in fp32. Press the number to see which.",
};
const INT8_MACS: ColumnSpec = {
  name: "int8_macs",
  label: "In int8",
  unit: "share",
  better: "higher",
  help: "Share of the fp32 model's multiplications that the trial does with 8-bit integers.",
};
const WALL: ColumnSpec = {
  name: "wall_s",
  label: "Wall time",
  unit: "s",
  better: "lower",
  help: "How long the trial took: quantizing, evaluating and measuring.",
};
const NOTES: ColumnSpec = { name: "notes", type: "text", label: "Notes", help: "What the trial says about itself." };

function configSpec(key: string): ColumnSpec {
  return {
    name: `config.${key}`,
    type: "text",
    label: key,
    unit: "config",
    help: `What the trial's config says for ${key}.`,
  };
}

/** The fp32 model as the trials tell of it: one more of them, with which nothing was done. */
export function fp32Of(runs: RunTrial[]): Trial | null {
  const told = runs.flatMap(({ trial }) => (trial?.baseline != null ? [trial] : []));
  const accuracy = told[0]?.baseline;
  // Trials of several models have no fp32 in common.
  if (accuracy == null || told.some(({ baseline }) => baseline !== accuracy)) return null;
  const objectives = Object.assign({}, ...told.map(({ baseline_objectives: known }) => known ?? {}));
  return { name: "fp32", accuracy, baseline: accuracy, objectives, lower_is_better: told[0]?.lower_is_better ?? false };
}

/** Keys that any trial has, those of most trials first. */
function keysOf(runs: RunTrial[], part: "objectives" | "config"): string[] {
  const counts = new Map<string, number>();
  for (const { trial } of runs) {
    for (const key of Object.keys(trial?.[part] ?? {})) counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return [...counts].sort(([, a], [, b]) => b - a).map(([key]) => key);
}

/** Keys in which the trials differ, and what all of them have alike. */
function configOf(runs: RunTrial[]): { config: string[]; sameConfig: string[] } {
  const told = runs.flatMap(({ trial }) => (trial ? [trial.config ?? {}] : []));
  const sameConfig: string[] = [];
  const config = keysOf(runs, "config").filter((key) => {
    const values = new Set(told.map((one) => asText(one[key])));
    if (values.size > 1) return true;
    const [value = ""] = values;
    if (value) sameConfig.push(`${key} ${value}`);
    return false;
  });
  return { config, sameConfig };
}

/** What the best of the trials that meet the target saves of one cost of the fp32 model; null where that is not known. */
export interface Saving {
  run: string;
  /** Negative where it costs more than fp32. */
  share: number;
}

export function bestSaving(runs: RunTrial[], key: string): Saving | null {
  const found = runs.flatMap(({ run, trial }): Saving[] => {
    const [own, whole] = [trial?.objectives?.[key], trial?.baseline_objectives?.[key]];
    if (!trial || !targetMet(trial) || own == null || !whole || !(whole > 0)) return [];
    return [{ run, share: 1 - own / whole }];
  });
  return found.reduce<Saving | null>((best, one) => (best && best.share >= one.share ? best : one), null);
}

function counted(kinds: string[]): string {
  const groups = Map.groupBy(kinds, (kind) => kind);
  return Array.from(groups, ([kind, { length }]) => (length > 1 ? `${kind} × ${length}` : kind)).join(", ");
}

export function asText(value: unknown): string {
  if (value === undefined || value === null) return "";
  const kinds = Array.isArray(value) ? value.map((some) => some?.kind) : [];
  // Of rewrites what they are and how many, without the numbers that redo them.
  if (kinds.length > 0 && kinds.every((kind) => typeof kind === "string")) return counted(kinds);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** The ops that a trial keeps in fp32, each once. */
export function fallbackOf(trial: Pick<Trial, "fallback"> | null | undefined): string[] {
  return [...new Set(trial?.fallback)];
}
