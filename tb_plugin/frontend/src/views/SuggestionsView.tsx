// What to change, the worst first, and the config that does it.

import { HowToDiagnose } from "../components/HowToDiagnose.tsx";
import { Empty, Loaded } from "../components/Status.tsx";
import type { Suggestion } from "../records.ts";
import * as state from "../state.ts";
import { Article } from "./suggestions/Article.tsx";
import { JointPanel } from "./suggestions/JointPanel.tsx";

export function SuggestionsView() {
  if (!state.has("suggestions")) return <NoneLogged />;
  return (
    <Loaded of={state.record("suggestions")} what="the suggestions">
      {({ rows }) =>
        rows.length ? <Suggestions rows={rows} /> : state.isMeasured.value ? <NoSuggestions /> : <NotMeasured />
      }
    </Loaded>
  );
}

function Suggestions({ rows }: { rows: Suggestion[] }) {
  return (
    <section class="view sg" aria-label="Suggestions">
      <div class="sg-columns">
        <div class="sg-list">
          {rows.map((suggestion) => (
            <Article key={`${state.run.value} ${suggestion.rank}`} suggestion={suggestion} />
          ))}
        </div>
        <JointPanel suggestions={rows} />
      </div>
    </section>
  );
}

function NotMeasured() {
  return (
    <Empty title="No suggestions: no op of this run was measured">
      <p>
        The log says how its ops were configured, but holds no values of theirs. Choose another run, or log a diagnosis:
      </p>
      <HowToDiagnose run={state.run.value} />
    </Empty>
  );
}

function NoSuggestions() {
  return (
    <Empty title="No suggestions: no op adds enough error to be worth a change">
      <p>
        If the accuracy fell all the same, many small errors may add up: see where the total error grows, or compare
        with other trials.
      </p>
      <p class="sg-next">
        <button
          type="button"
          onClick={() => {
            state.chosenSort.value = [{ column: "total_sqnr_db", descending: false }];
            state.view.value = "ops";
          }}
        >
          Ops by total error
        </button>
        <button
          type="button"
          onClick={() => {
            state.view.value = "trials";
          }}
        >
          Compare trials
        </button>
      </p>
    </Empty>
  );
}

function NoneLogged() {
  return (
    <Empty title={`${state.run.value} holds no suggestions`}>
      <p>A diagnosis brings them along; choose another run, or log one:</p>
      <HowToDiagnose run={state.run.value} />
    </Empty>
  );
}
