// The model's graph, colored by a column of the op table. Loaded when its tab is opened, with all that it needs.

import { useEffect, useRef } from "preact/hooks";
import { Empty, Loaded } from "../components/Status.tsx";
import { shortenMiddle } from "../format.ts";
import { Canvas } from "../graph/Canvas.tsx";
import { ColorBy, Colors, usePaint } from "../graph/Colors.tsx";
import { FindOp } from "../graph/FindOp.tsx";
import { type Item, type Op, seenAs, type Tree } from "../graph/group.ts";
import { Minimap } from "../graph/Minimap.tsx";
import * as model from "../graph/model.ts";
import type { Paint } from "../graph/paint.ts";
import { useScreen } from "../graph/pointer.ts";
import { Notice, Seen, WorkStatus } from "../graph/Status.tsx";
import type { GraphNode } from "../records.ts";
import * as state from "../state.ts";

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
    if (paint?.worst) model.lookFirstAt(tree, paint.worst);
  }, [tree, paint?.worst]);
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
        {shown?.tree === tree && <Minimap shown={shown} paint={paint} />}
        <WorkStatus />
        <ViewButtons selected={selected} worst={paint?.worst ?? null} />
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
      <ColorBy />
      <button type="button" disabled={!tree.groups.size} onClick={model.openAll}>
        Expand all
      </button>
      <button type="button" disabled={!tree.groups.size} onClick={model.closeAll}>
        Collapse all
      </button>
      <Seen ops={tree.ops.length} />
      <span class="spacer" />
      {paint && <Colors paint={paint} />}
    </div>
  );
}

function ViewButtons({ selected, worst }: { selected: Op | undefined; worst: Op | null }) {
  const open = model.picture.value?.open;
  const seen = worst && open && seenAs(worst, open);
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
      {worst && seen && (
        <button type="button" title={worst.name} onClick={() => model.reveal(worst)}>
          Worst: {shortenMiddle(seen.label, 24)}
        </button>
      )}
      <button type="button" disabled={!selected} onClick={() => selected && model.reveal(selected)}>
        Center selection
      </button>
    </div>
  );
}
