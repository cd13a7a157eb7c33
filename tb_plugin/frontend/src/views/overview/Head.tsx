// What is lost in one sentence, its cause in another, and the scores.

import { isAboutTime, reasonOf } from "../../advice.ts";
import { RunLink } from "../../components/Outcome.tsx";
import { firstEntry } from "../../configs.ts";
import { formatScore } from "../../format.ts";
import { readyValue } from "../../loadable.ts";
import { type Headline, headlineOf, type Scores, scoresOf } from "../../overview.ts";
import * as state from "../../state.ts";
import { output, trial } from "./data.ts";

export function Head() {
  const headline = headlineOf(trial.value, output.value);
  const scores = scoresOf(readyValue(state.trials.value) ?? [], state.run.value);
  return (
    <header class={`ov-head ${headline.tone}`}>
      <div class="ov-said">
        <h2>{headline.text}.</h2>
        <p class="ov-cause">{causeOf(headline)}</p>
      </div>
      {!Number.isNaN(scores.here) && <ScoreCards scores={scores} />}
    </header>
  );
}

function causeOf({ tone }: Headline): string {
  const first = firstEntry.value;
  const because = first && !isAboutTime(first) ? first.suggestions[0]?.because : "";
  if (because) return `${tone === "good" ? "What is worst all the same" : "Why"}: ${reasonOf(because)}.`;
  if (!state.isMeasured.value) return "The log says how the ops were configured, but holds no values of theirs.";
  if (!state.has("suggestions")) return "This run holds no suggestions.";
  return tone === "bad"
    ? "No op stands out: many small errors may add up, or the evaluation differs from the samples that were compared."
    : "Healthy: no op adds enough error to be worth a change.";
}

function ScoreCards({ scores: { fp32, here, best, lower } }: { scores: Scores }) {
  return (
    <dl class="ov-scores">
      {!Number.isNaN(fp32) && <Score what={`${lower ? "loss" : "accuracy"} of fp32`} value={fp32} />}
      <Score what="this run" value={here} />
      {best && (
        <div>
          <dt>{best.run === state.run.value ? "best of all trials" : "best"}</dt>
          <dd>{formatScore(best.accuracy)}</dd>
          <dd class="ov-which">{best.run === state.run.value ? "this run" : <RunLink run={best.run} />}</dd>
        </div>
      )}
    </dl>
  );
}

function Score({ what, value }: { what: string; value: number }) {
  return (
    <div>
      <dt>{what}</dt>
      <dd>{formatScore(value)}</dd>
    </div>
  );
}
