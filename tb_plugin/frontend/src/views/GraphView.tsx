// The model's graph, coloured by a column of the op table. Loaded when its tab is opened, with all that it needs.

import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { Legend } from "../components/Legend.tsx";
import { Empty, Loaded } from "../components/Status.tsx";
import { explained } from "../components/Tooltip.tsx";
import { Canvas, useScreen } from "../graph/Canvas.tsx";
import { FindOp } from "../graph/FindOp.tsx";
import type { Item, Op, Tree } from "../graph/group.ts";
import * as model from "../graph/model.ts";
import { type Paint, paintBy, verdictColour } from "../graph/paint.ts";
import { Notice, Seen, WorkStatus } from "../graph/Status.tsx";
import { readyValue } from "../loadable.ts";
import { describe, Help, labelOf } from "../opcolumns.tsx";
import type { ColumnSpec, GraphNode } from "../records.ts";
import * as state from "../state.ts";

/** Not state.metric: what compares numbers could do nothing with a verdict. */
const isByVerdict = signal(false);
const ZOOM = 1.25;

export function GraphView() {
  if (!state.has("graph")) return <NoGraph />;
  return (
    <Loaded of={state.record("graph")} what="the graph">
      {({ rows }) => (rows.length ? <Graph rows={rows} /> : <NoGraph />)}
    </Loaded>
  );
}

function NoGraph() {
  return (
    <Empty title={`${state.run.value} holds no graph`}>
      <p>A diagnosis brings the graph of its model. Choose another run, or diagnose the two models again:</p>
      <pre>inc-tb diagnose fp32.onnx int8.onnx --data samples.npz --logdir nc_workspace</pre>
      <p>Runs that were imported from logs only know the ops; these are in the Ops tab.</p>
    </Empty>
  );
}

function Graph({ rows }: { rows: GraphNode[] }) {
  const tree = model.treeOf(rows);
  const selected = tree.byName.get(state.op.value);
  const place = useScreen(selected);
  const chosenHere = useRef("");
  const paint = usePaint(tree);
  const shown = model.picture.value;

  useEffect(() => {
    model.begin(tree, selected);
  }, [tree]);
  useEffect(() => {
    // Who clicks on a node sees it already, and would lose it if the picture moved.
    if (selected && chosenHere.current !== selected.name) model.reveal(selected);
    chosenHere.current = "";
  }, [selected]);
  const onChoose = (item: Item) => {
    if (item.kind !== "op") return;
    chosenHere.current = item.name === state.op.value ? "" : item.name;
    state.openOp(item.name);
  };

  return (
    <section class="view graph" aria-label="Graph">
      <Toolbar tree={tree} paint={paint} selected={selected} />
      <Notice />
      <div class="graph-place" ref={place}>
        {shown?.tree === tree && <Canvas shown={shown} paint={paint} selected={selected} onChoose={onChoose} />}
        <WorkStatus />
        <ViewButtons selected={selected} />
      </div>
      <p class="graph-keys muted" id="graph-keys">
        Drag or arrow keys move, wheel or + and − zoom, double-click or Enter opens a group; on a node, ↓ and ↑ follow
        the edges, ← and → the order of the graph.
      </p>
    </section>
  );
}

function Toolbar({ tree, paint, selected }: { tree: Tree; paint: Paint | null; selected: Op | undefined }) {
  return (
    <div class="toolbar">
      <FindOp
        tree={tree}
        onChoose={(op) => {
          if (op === selected) model.reveal(op);
          state.openOp(op.name);
        }}
      />
      <ColourBy />
      <button type="button" disabled={!tree.groups.size} onClick={model.openAll}>
        Expand all
      </button>
      <button type="button" disabled={!tree.groups.size} onClick={model.closeAll}>
        Collapse all
      </button>
      <Seen ops={tree.ops.length} />
      <span class="spacer" />
      {paint && <Colours paint={paint} />}
    </div>
  );
}

function coloured(): ColumnSpec[] {
  const specs = readyValue(state.header.value)?.columns ?? [];
  return specs.filter(({ name, type }) => type !== "text" || name === "verdict");
}

/** The column that colours: the chosen one where the table has it, else the first that is good or bad. */
function chosenColumn(): ColumnSpec | undefined {
  const specs = coloured();
  const wanted = isByVerdict.value ? "verdict" : state.metric.value;
  return specs.find(({ name }) => name === wanted) ?? specs.find(({ better }) => better) ?? specs[0];
}

function ColourBy() {
  const chosen = chosenColumn();
  return (
    <label class="check">
      Colour by
      <select
        class="graph-colour-by"
        title={chosen && describe(chosen)}
        value={chosen?.name ?? ""}
        onChange={(event) => {
          const name = event.currentTarget.value;
          isByVerdict.value = name === "verdict";
          if (name !== "verdict") state.metric.value = name;
        }}
      >
        {coloured().map((spec) => (
          <option key={spec.name} value={spec.name}>
            {labelOf(spec)}
            {spec.unit ? ` (${spec.unit})` : ""}
          </option>
        ))}
      </select>
    </label>
  );
}

function usePaint(tree: Tree): Paint | null {
  const name = chosenColumn()?.name ?? "";
  const column = name ? readyValue(state.column(name)) : undefined;
  const hasVerdict = coloured().some((spec) => spec.name === "verdict");
  const verdicts = hasVerdict ? readyValue(state.column("verdict")) : undefined;
  const rowOf = state.rowOf.value;
  return useMemo(() => (column ? paintBy(tree, column, verdicts, rowOf) : null), [tree, column, verdicts, rowOf]);
}

function Colours({ paint }: { paint: Paint }) {
  const isVerdict = paint.spec.name === "verdict";
  return (
    <span class="graph-colours" {...explained(<Help spec={paint.spec} />)}>
      {isVerdict ? <VerdictLegend /> : <Legend spec={paint.spec} scale={paint.scale} />}
      <span class="muted">
        {isVerdict || paint.scale
          ? "a group has the colour of its worst op"
          : `${labelOf(paint.spec)} is neither good nor bad: no colours`}
      </span>
    </span>
  );
}

function VerdictLegend() {
  return (
    <span class="legend">
      {["bad", "watch", "ok"].map((verdict) => (
        <span key={verdict} class="legend">
          <span class="graph-swatch" style={{ background: verdictColour(verdict) }} aria-hidden="true" />
          {verdict}
        </span>
      ))}
    </span>
  );
}

function ViewButtons({ selected }: { selected: Op | undefined }) {
  return (
    <div class="graph-buttons" role="group" aria-label="View of the graph">
      <button type="button" aria-label="Zoom in" onClick={() => model.zoom(ZOOM)}>
        +
      </button>
      <button type="button" aria-label="Zoom out" onClick={() => model.zoom(1 / ZOOM)}>
        −
      </button>
      <button type="button" onClick={model.fit}>
        Fit
      </button>
      <button type="button" disabled={!selected} onClick={() => selected && model.reveal(selected)}>
        Centre selection
      </button>
    </div>
  );
}
