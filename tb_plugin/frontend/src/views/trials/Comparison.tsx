// The picked runs op by op: which are compared, what is shown of them, and the matrix.

import { HowToDiagnose } from "../../components/HowToDiagnose.tsx";
import { Empty, Loading, Problem } from "../../components/Status.tsx";
import { formatScore } from "../../format.ts";
import * as state from "../../state.ts";
import { table } from "../../trials.ts";
import { MatrixTools } from "./MatrixTools.tsx";
import * as matrix from "./matrix.ts";
import { OpMatrix } from "./OpMatrix.tsx";
import { makeBase, refusal, togglePick } from "./picks.ts";

export function Comparison() {
  const count = state.compared.value.length;
  if (table.value.runs.length < 2) {
    return (
      <p class="trials-hint">
        There is only one run. Log a second one, such as the suggested fallback or another calibration, and compare the
        two here; <code>inc-tb tune</code> makes a run for every config that it tries.
      </p>
    );
  }
  if (!count) return <p class="trials-hint">Tick 2 to {state.MOST_PICKED} runs above to compare them op by op.</p>;
  return (
    <section class="trials-comparison" aria-label="Comparison">
      <Picked />
      {matrix.gone.value.length > 0 && (
        <p class="wrong" role="alert">
          Not there (any more): {matrix.gone.value.join(", ")}.
        </p>
      )}
      {matrix.runs.value.length < 2 ? (
        <p class="trials-hint">Tick one more run to compare it with the base.</p>
      ) : (
        <Compared />
      )}
    </section>
  );
}

function Picked() {
  const trials = new Map(table.value.runs.map(({ run, trial }) => [run, trial]));
  return (
    <>
      <div class="trials-line">
        <h2>Comparison</h2>
        <span class="spacer" />
        <button
          type="button"
          onClick={() => {
            state.compared.value = [];
            refusal.value = "";
          }}
        >
          Clear
        </button>
      </div>
      <ul class="trials-picked" aria-label="Compared runs">
        {state.compared.value.map((run, i) => (
          <li key={run}>
            <strong>{run}</strong>
            <span class="muted" title="accuracy">
              {formatScore(trials.get(run)?.accuracy ?? Number.NaN)}
            </span>
            {i === 0 ? (
              <span title="The others are held against it">base</span>
            ) : (
              <button type="button" class="link" aria-label={`make base: ${run}`} onClick={() => makeBase(run)}>
                make base
              </button>
            )}
            <button type="button" class="icon" aria-label={`Do not compare ${run}`} onClick={() => togglePick(run)}>
              ×
            </button>
          </li>
        ))}
      </ul>
    </>
  );
}

function Compared() {
  const { diagnosed, header, settled, union, troubles } = matrix;
  if (!diagnosed.value.includes(true)) {
    return (
      <Empty title="None of these runs holds a diagnosis">
        <p>Their ops cannot be compared. Diagnose a run to see its ops here:</p>
        <HowToDiagnose run={matrix.runs.value[0]!} />
      </Empty>
    );
  }
  if (header.value?.state === "error") return <Problem message={header.value.message} />;
  if (header.value?.state === "loading" || !settled.value) return <Loading what="the ops of these runs" />;
  return (
    <>
      <MatrixTools />
      {troubles.value.map((text) => (
        <p key={text} class="trials-hint muted">
          {text}
        </p>
      ))}
      {!diagnosed.value[0] && (
        <p class="trials-hint wrong">The base has no ops to hold the others against. Make another run the base.</p>
      )}
      {union.value.names.length > 0 && <OpMatrix />}
    </>
  );
}
