// Where everything goes, by elkjs in a worker. One layout at a time: a new one ends the one before.

import ELK, { type ELK as Elk, type ElkNode } from "elkjs/lib/elk-api.js";
import { openWorker } from "../layoutworker.ts";
import type { Edge, Item, Visible } from "./group.ts";
import { type Box, boxSize, type Point, routable } from "./picture.ts";

export interface Route {
  edge: Edge;
  points: Point[];
}

export interface Layout {
  boxes: ReadonlyMap<string, Box>;
  routes: Route[];
  width: number;
  height: number;
}

const OPTIONS = {
  "elk.algorithm": "layered",
  "elk.direction": "DOWN",
  "elk.padding": "[top=0,left=0,bottom=0,right=0]",
  "elk.hierarchyHandling": "INCLUDE_CHILDREN",
  "elk.json.shapeCoords": "ROOT",
  "elk.json.edgeCoords": "ROOT",
  // Groups may form cycles that the model does not have; the order of the graph tells which edge points back.
  "elk.layered.cycleBreaking.strategy": "MODEL_ORDER",
  "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
};
/** For the whole and again for each group, which does not inherit it. */
const SPACING = {
  "elk.layered.spacing.nodeNodeBetweenLayers": "22",
  "elk.layered.spacing.edgeNodeBetweenLayers": "8",
  "elk.spacing.nodeNode": "22",
  "elk.spacing.edgeNode": "12",
};

let running: { elk: Elk; broken: Promise<never> } | null = null;
let isBusy = false;

/** Ends a layout that is under way; whoever waits for it waits for ever. */
export function stopLayout(): void {
  if (!isBusy) return;
  running?.elk.terminateWorker();
  running = null;
  isBusy = false;
}

export async function layOut(visible: Visible, open: ReadonlySet<string>): Promise<Layout> {
  stopLayout();
  running ??= start();
  const mine = running;
  isBusy = true;
  const routed = routable(visible);
  try {
    return layoutOf(await Promise.race([mine.elk.layout(toElk(visible.items, routed, open)), mine.broken]), visible);
  } finally {
    if (running === mine) isBusy = false;
  }
}

function start(): { elk: Elk; broken: Promise<never> } {
  const worker = openWorker();
  const broken = new Promise<never>((_, reject) => {
    worker.addEventListener("error", (event) => {
      running = null;
      reject(new Error(event.message || "elk-worker.js could not be loaded"));
    });
  });
  // Nobody may be waiting at the moment when it breaks.
  broken.catch(() => {});
  return { elk: new ELK({ workerFactory: () => worker, algorithms: ["layered"] }), broken };
}

function toElk(items: Item[], edges: Edge[], open: ReadonlySet<string>): ElkNode {
  const root: ElkNode = { id: "root", layoutOptions: { ...OPTIONS, ...SPACING }, children: [] };
  const made = new Map<string, ElkNode>();
  for (const item of items) {
    const { width, height } = boxSize(item);
    const node: ElkNode = open.has(item.id)
      ? {
          id: item.id,
          children: [],
          layoutOptions: {
            ...SPACING,
            "elk.padding": `[top=${height + 12},left=14,bottom=14,right=14]`,
            "elk.nodeSize.constraints": "MINIMUM_SIZE",
            // Height first: elk swaps the two when it lays out downwards (eclipse-elk/elk issue 1033).
            "elk.nodeSize.minimum": `(${height + 20},${width})`,
          },
        }
      : { id: item.id, width, height };
    made.set(item.id, node);
    (item.parent ? made.get(item.parent.id)! : root).children!.push(node);
  }
  root.edges = edges.map(({ id, from, to }) => ({ id, sources: [from.id], targets: [to.id] }));
  return root;
}

function layoutOf(root: ElkNode, visible: Visible): Layout {
  const boxes = new Map<string, Box>();
  const place = (node: ElkNode) => {
    boxes.set(node.id, { x: node.x ?? 0, y: node.y ?? 0, width: node.width ?? 0, height: node.height ?? 0 });
    node.children?.forEach(place);
  };
  root.children?.forEach(place);
  const drawn = new Map((root.edges ?? []).map((edge) => [edge.id, edge.sections?.[0]]));
  const routes = visible.edges.map((edge): Route => {
    const section = drawn.get(edge.id);
    if (section) return { edge, points: [section.startPoint, ...(section.bendPoints ?? []), section.endPoint] };
    const from = boxes.get(edge.from.id)!;
    const to = boxes.get(edge.to.id)!;
    return {
      edge,
      points: [
        { x: from.x + from.width / 2, y: from.y + from.height },
        { x: to.x + to.width / 2, y: to.y },
      ],
    };
  });
  return { boxes, routes, width: root.width ?? 0, height: root.height ?? 0 };
}
