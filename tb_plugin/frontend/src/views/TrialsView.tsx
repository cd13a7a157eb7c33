// Trials side by side: the table of all runs, accuracy against what it costs, and ops of the picked runs.

import { Loaded } from "../components/Status.tsx";
import * as state from "../state.ts";
import { table } from "../trials.ts";
import { Charts } from "./trials/Charts.tsx";
import { Comparison } from "./trials/Comparison.tsx";
import { FallbackSet } from "./trials/FallbackSet.tsx";
import { TrialTable } from "./trials/TrialTable.tsx";

export function TrialsView() {
  return (
    <Loaded of={state.trials.value} what="the trials">
      {() => (
        <section class="trials" aria-label="Trials">
          {!table.value.runs.some(({ trial, error }) => trial || error) && <NoTrials />}
          <TrialTable />
          <FallbackSet />
          <div class={`trials-below${state.compared.value.length > 1 ? " comparing" : ""}`}>
            <Comparison />
            <Charts />
          </div>
        </section>
      )}
    </Loaded>
  );
}

function NoTrials() {
  return (
    <div class="trials-hint">
      <p>No run has logged a trial, so there is no accuracy to rank by. Log one beside the diagnosis:</p>
      <pre>{`with inc_tb.SummaryWriter("${state.run.value}") as writer:\n    writer.add_trial(inc_tb.Trial("${state.run.value}", accuracy=0.751, baseline=0.765, target=0.757))`}</pre>
    </div>
  );
}
