// The answer in one sentence: how much was lost, or that all is well. Pure functions.

import { drop, targetMet } from "./compare.ts";
import { formatScore, withUnit } from "./format.ts";
import type { Trial } from "./records.ts";
import type { RunTrial } from "./state.ts";

export interface Scores {
  /** NaN where nothing was evaluated. */
  fp32: number;
  here: number;
  target: number;
  /** Of the trials of this model, the shown one among them. */
  best: { run: string; accuracy: number } | null;
  /** Whether the scores are losses. */
  lower: boolean;
}

export function scoresOf(trials: RunTrial[], run: string): Scores {
  const here = trials.find((one) => one.run === run)?.trial;
  const lower = here?.lower_is_better ?? false;
  const alike = trials.flatMap(({ run: name, trial }) =>
    trial?.accuracy != null && here && (trial.lower_is_better ?? false) === lower && trial.baseline === here.baseline
      ? [{ run: name, accuracy: trial.accuracy }]
      : [],
  );
  const isBetter = (a: number, b: number) => (lower ? a < b : a > b);
  const best = alike.reduce<Scores["best"]>((so, one) => (!so || isBetter(one.accuracy, so.accuracy) ? one : so), null);
  return {
    fp32: here?.baseline ?? Number.NaN,
    here: here?.accuracy ?? Number.NaN,
    target: here?.target ?? Number.NaN,
    best,
    lower,
  };
}

/** The error of the last op that was compared, which is what the model gives. */
export interface Output {
  op: string;
  /** NaN where nothing was compared. */
  sqnrDb: number;
  /** Normal from here on. */
  normalDb: number;
}

export interface Headline {
  tone: "good" | "bad" | "unknown";
  text: string;
}

/** By the accuracy where it was evaluated, else by the error of the output. */
export function headlineOf(trial: Trial | null | undefined, output: Output): Headline {
  return (trial && evaluated(trial)) ?? measured(output);
}

function evaluated(trial: Trial): Headline | null {
  const { accuracy, baseline, target, lower_is_better: lower } = trial;
  if (accuracy == null) return null;
  const lost = drop(trial);
  const score = lower ? "loss" : "accuracy";
  const met = targetMet(trial);
  const [is, was] = [formatScore(accuracy), formatScore(baseline ?? Number.NaN)];
  if (met) {
    return {
      tone: "good",
      text: `Meets its target: ${score} ${is}, at ${lower ? "most" : "least"} ${formatScore(target!)} was asked for`,
    };
  }
  if (!lost) {
    if (met === null) return null;
    return { tone: "bad", text: `Misses its target: ${score} ${is}, ${formatScore(target!)} was asked for` };
  }
  if (lost.absolute <= 0) return { tone: "good", text: `As good as fp32: ${score} ${is}, fp32 has ${was}` };
  const share = Number.isFinite(lost.relative) ? ` (${withUnit(lost.relative, "share")})` : "";
  const by = formatScore(lost.absolute);
  return {
    tone: met === false || !(lost.relative <= USUAL_DROP) ? "bad" : "good",
    text: lower
      ? `Quantizing raised the loss by ${by}${share}: ${is} instead of ${was}`
      : `Quantizing cost ${by} of accuracy${share}: ${is} instead of ${was}`,
  };
}

/** Relative: what people mostly accept where nobody has said what is. */
const USUAL_DROP = 0.01;

function measured({ op, sqnrDb, normalDb }: Output): Headline {
  if (Number.isNaN(sqnrDb)) return { tone: "unknown", text: "No op of this run was compared with fp32" };
  const db = withUnit(sqnrDb, "dB");
  return sqnrDb < normalDb
    ? { tone: "bad", text: `The output is off: ${db} signal to noise at ${op}, over ${normalDb} is usual` }
    : { tone: "good", text: `The output is close to fp32: ${db} signal to noise at ${op}` };
}
