// What to change, the worst first, and the config that does it.

import { curesNothing, type Entry } from "../advice.ts";
import { ToolPicker } from "../components/ConfigBox.tsx";
import { HowToDiagnose } from "../components/HowToDiagnose.tsx";
import { Empty, Loaded } from "../components/Status.tsx";
import { entries, tools } from "../configs.ts";
import { plural } from "../format.ts";
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
  const isVain = entries.value.map(curesNothing);
  const vain = entries.value.filter((_, i) => isVain[i]);
  return (
    <section class="view sg" aria-label="Suggestions">
      <div class="sg-columns">
        <div class="sg-list">
          <ToolPicker tool={chosenTool()} hasNone />
          <Articles of={entries.value.filter((_, i) => !isVain[i])} />
          {vain.length > 0 && (
            <details class="sg-vain">
              <summary>
                {plural(vain.length, "suggestion")} that alone {vain.length === 1 ? "leaves" : "leave"} the error as it
                is, as measured
              </summary>
              <Articles of={vain} />
            </details>
          )}
        </div>
        <JointPanel suggestions={rows} />
      </div>
    </section>
  );
}

/** Empty also where what is remembered is no tool of this log. */
function chosenTool(): string {
  return tools.value.some(({ tool }) => tool === state.tool.value) ? state.tool.value : "";
}

function Articles({ of }: { of: Entry[] }) {
  return (
    <>
      {of.map((entry) => (
        <Article key={`${state.run.value} ${entry.rank}`} entry={entry} isAlone={entries.value.length === 1} />
      ))}
    </>
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
