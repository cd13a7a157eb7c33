// The picked runs op by op: which are compared, what is shown of them, and the matrix.

import { ColumnOptions } from "../../components/ColumnOptions.tsx";
import { CopyButton } from "../../components/CopyButton.tsx";
import { HowToDiagnose } from "../../components/HowToDiagnose.tsx";
import { Legend } from "../../components/Legend.tsx";
import { Empty, Loading, Problem } from "../../components/Status.tsx";
import { formatScore, plural, withUnit } from "../../format.ts";
import { labelOf } from "../../opcolumns.tsx";
import type { ColumnSpec } from "../../records.ts";
import { differenceColour } from "../../scale.ts";
import * as state from "../../state.ts";
import * as matrix from "./matrix.ts";
import { OpMatrix } from "./OpMatrix.tsx";
import { makeBase, refusal, table, togglePick } from "./picks.ts";

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
        <CopyButton label="Copy link" text={() => state.link()} />
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
      <Tools />
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

function Tools() {
  const shown = state.matrix;
  const set = (changes: Partial<state.Matrix>) => {
    shown.value = { ...shown.value, ...changes };
  };
  const { difference, changed, text } = shown.value;
  const sort = matrix.sort.value;
  const spec = matrix.metric.value;
  const all = matrix.union.value.names.length;
  const some = matrix.order.value.length;
  const [key] = sort;
  const orderedBy = !key
    ? "graph"
    : key.column === "largest" && key.descending && sort.length === 1
      ? "largest"
      : "column";
  return (
    <div class="trials-line">
      <Metrics />
      <label class="check">
        <input
          type="checkbox"
          checked={difference}
          onChange={(event) => set({ difference: event.currentTarget.checked })}
        />
        difference against the base
      </label>
      <label class="check" title="Ops whose dtype, granularity or scheme is not as in the base">
        <input type="checkbox" checked={changed} onChange={(event) => set({ changed: event.currentTarget.checked })} />
        only ops whose config changed ({matrix.changedCount.value.toLocaleString("en")})
      </label>
      <input
        type="search"
        aria-label="Filter ops"
        placeholder="words of the name"
        value={text}
        onInput={(event) => set({ text: event.currentTarget.value })}
      />
      <label>
        Order{" "}
        <select
          aria-label="Order"
          value={orderedBy}
          onChange={({ currentTarget: { value } }) => set({ sort: value === "graph" ? [] : state.LARGEST_FIRST })}
        >
          <option value="largest">largest difference first</option>
          <option value="graph">as in the graph</option>
          {orderedBy === "column" && <option value="column">by the marked column</option>}
        </select>
      </label>
      <span class="muted" role="status">
        {some === all ? plural(all, "op") : `${some.toLocaleString("en")} of ${plural(all, "op")}`}
      </span>
      <span class="spacer" />
      {difference ? <DifferenceLegend spec={spec} /> : <Legend spec={spec} scale={matrix.scale.value} />}
    </div>
  );
}

function Metrics() {
  return (
    <label>
      Metric{" "}
      <select
        class="trials-metric"
        aria-label="Metric"
        value={matrix.metric.value.name}
        title={matrix.metric.value.help}
        onChange={(event) => {
          state.metric.value = event.currentTarget.value;
        }}
      >
        <ColumnOptions specs={matrix.metrics.value} />
      </select>
    </label>
  );
}

const LEVELS = [-1, -0.5, -0.02, 0.02, 0.5, 1];

function DifferenceLegend({ spec }: { spec: ColumnSpec }) {
  if (!spec.better) return <span class="legend muted">{labelOf(spec)}: neither more nor less is better</span>;
  const most = withUnit(matrix.span.value, spec.unit);
  const sign = spec.better === "higher" ? ["−", "+"] : ["+", "−"];
  return (
    <span class="legend">
      <span>
        worse {sign[0]}
        {most}
      </span>
      <span
        class="legend-bar"
        style={{ background: `linear-gradient(90deg, ${LEVELS.map(differenceColour).join(", ")})` }}
        aria-hidden="true"
      />
      <span>
        better {sign[1]}
        {most}
      </span>
    </span>
  );
}
