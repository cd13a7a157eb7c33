// What the matrix of ops by trial shows: which metric, which ops, in which order, and what its colors mean.

import { ColumnOptions } from "../../components/ColumnOptions.tsx";
import { Legend } from "../../components/Legend.tsx";
import { plural, withUnit } from "../../format.ts";
import { labelOf } from "../../opcolumns.tsx";
import type { ColumnSpec } from "../../records.ts";
import { differenceColor } from "../../scale.ts";
import * as state from "../../state.ts";
import * as matrix from "./matrix.ts";

export function MatrixTools() {
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
          state.chosenMetric.value = event.currentTarget.value;
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
        style={{ background: `linear-gradient(90deg, ${LEVELS.map(differenceColor).join(", ")})` }}
        aria-hidden="true"
      />
      <span>
        better {sign[1]}
        {most}
      </span>
    </span>
  );
}
