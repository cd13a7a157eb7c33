// The model's graph, coloured by a column of the op table. Loaded when its tab is opened, with all that it needs.

import { batch } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { ColumnOptions } from "../components/ColumnOptions.tsx";
import { Legend } from "../components/Legend.tsx";
import { Empty, Loaded } from "../components/Status.tsx";
import { explained } from "../components/Tooltip.tsx";
import { plural, shorten } from "../format.ts";
import { Canvas, useScreen } from "../graph/Canvas.tsx";
import { FindOp } from "../graph/FindOp.tsx";
import type { Item, Op, Tree } from "../graph/group.ts";
import { type Kinds, OTHER } from "../graph/kinds.ts";
import * as model from "../graph/model.ts";
import { type Paint, paintBy } from "../graph/paint.ts";
import { Notice, Seen, WorkStatus } from "../graph/Status.tsx";
import { readyValue } from "../loadable.ts";
import { describe, Help, labelOf } from "../opcolumns.tsx";
import type { Column, ColumnSpec, GraphNode } from "../records.ts";
import * as state from "../state.ts";

/** Texts of which nearly every op has its own. */
const NO_KINDS = new Set(["name", "unit", "reason"]);

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
  return specs.filter(({ name }) => !NO_KINDS.has(name));
}

/** The column that colours: the chosen one where the table has it, else the first that is good or bad. */
function chosenColumn(): ColumnSpec | undefined {
  const specs = coloured();
  const byName = new Map(specs.map((spec) => [spec.name, spec]));
  return (
    byName.get(state.paint.value) ?? byName.get(state.metric.value) ?? specs.find(({ better }) => better) ?? specs[0]
  );
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
          const isText = coloured().some((spec) => spec.name === name && spec.type === "text");
          batch(() => {
            state.paint.value = isText ? name : "";
            if (!isText) state.metric.value = name;
          });
        }}
      >
        <ColumnOptions specs={coloured()} />
      </select>
    </label>
  );
}

function usePaint(tree: Tree): Paint | null {
  const name = chosenColumn()?.name ?? "";
  const column = name ? readyValue(state.column(name)) : undefined;
  const verdicts = columnIfAny("verdict");
  const reason = columnIfAny("reason");
  const rowOf = state.rowOf.value;
  return useMemo(
    () => (column ? paintBy(tree, column, verdicts, rowOf, reason) : null),
    [tree, column, verdicts, rowOf, reason],
  );
}

function columnIfAny(name: string): Column | undefined {
  const isThere = readyValue(state.header.value)?.columns.some((spec) => spec.name === name);
  return isThere ? readyValue(state.column(name)) : undefined;
}

function Colours({ paint }: { paint: Paint }) {
  const { spec, scale, kinds } = paint;
  return (
    <div class="graph-colours" {...explained(<Help spec={spec} />)}>
      {kinds ? <KindLegend kinds={kinds} /> : <Legend spec={spec} scale={scale} />}
      <span class="muted">{aboutColours(paint)}</span>
    </div>
  );
}

function aboutColours({ spec, scale, kinds }: Paint): string {
  if (scale || spec.name === "verdict") return "a group has the colour of its worst op";
  if (!kinds) return `${labelOf(spec)} is neither good nor bad: no colours`;
  return kinds.own.length ? "a group of one kind has its colour" : `no op has a ${labelOf(spec)}`;
}

function KindLegend({ kinds: { own, others } }: { kinds: Kinds }) {
  const items = [...own, ...(others ? [{ text: plural(others, "other kind"), colour: OTHER }] : [])];
  return (
    <ul class="graph-kinds" aria-label="Colours">
      {items.map(({ text, colour }) => (
        <li key={text} class="legend" title={text}>
          <span class="graph-swatch" style={{ background: colour }} aria-hidden="true" />
          {shorten(text, 24)}
        </li>
      ))}
    </ul>
  );
}

function ViewButtons({ selected }: { selected: Op | undefined }) {
  return (
    <div class="graph-buttons" role="group" aria-label="View of the graph">
      <button type="button" aria-label="Zoom in" onClick={model.zoomIn}>
        +
      </button>
      <button type="button" aria-label="Zoom out" onClick={model.zoomOut}>
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
