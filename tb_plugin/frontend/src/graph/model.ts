// What the graph view remembers while the reader looks elsewhere: which groups are open, the last layout, the camera.

import { batch, signal } from "@preact/signals";
import type { GraphNode } from "../records.ts";
import {
  buildTree,
  type Group,
  groupsAround,
  type Item,
  type Op,
  openedAtFirst,
  openedWithin,
  seenAs,
  type Tree,
  type Visible,
  visibleOf,
} from "./group.ts";
import { type Layout, layOut, stopLayout } from "./layout.ts";
import { atFirst, type Camera, centerd, fitted, notLost, type Point, type Size, showing, zoomed } from "./picture.ts";

export interface Picture {
  tree: Tree;
  open: ReadonlySet<string>;
  visible: Visible;
  layout: Layout;
}

/** Where the camera goes when a new layout is there: to the start, or what is worst, to an item, or so that an item stays in place. */
type Aim = { to: "start"; worst?: Op } | { to: "center" | "hold"; item: Item };

type Work = { state: "idle" } | { state: "busy"; items: number } | { state: "failed"; message: string };

const FIRST_ITEMS = 40;
/** Measured in Chromium on two cores: 1,500 nodes are laid out in 2 to 3 seconds, and moving them stays smooth. */
const MOST_ITEMS = 1500;
export const LEGIBLE = 0.68;
const ZOOM = 1.25;

export const picture = signal<Picture | null>(null);
export const work = signal<Work>({ state: "idle" });
export const camera = signal<Camera>({ x: 0, y: 0, k: 1 });
export const screen = signal<Size>({ width: 0, height: 0 });
/** The item that the keyboard stands on. */
export const active = signal("");
export const takesFocus = signal(false);
export const notice = signal("");

let lastRows: GraphNode[] | null = null;
let lastTree: Tree | null = null;
/** What the camera saw before the reader moved it. */
let seenAtFirst: Camera | null = null;
let wanted: { tree: Tree; open: ReadonlySet<string>; aim: Aim } | null = null;

/** Trials of one model share their tree, so that changing the run changes colors and nothing else. */
export function treeOf(rows: GraphNode[]): Tree {
  if (!lastTree || !lastRows || (rows !== lastRows && JSON.stringify(rows) !== JSON.stringify(lastRows))) {
    lastTree = buildTree(rows);
  }
  lastRows = rows;
  return lastTree;
}

export function begin(tree: Tree, selected: Op | undefined): void {
  if (wanted?.tree === tree && work.value.state !== "failed") return;
  const open = openedAtFirst(tree, FIRST_ITEMS);
  for (const id of selected ? groupsAround(selected) : []) open.add(id);
  active.value = "";
  picture.value = null;
  void show(tree, open, selected ? { to: "center", item: selected } : { to: "start" });
}

/** The first look goes to the worst op, once it is known which that is, unless the reader has looked around by then. */
export function lookFirstAt(tree: Tree, worst: Op): void {
  if (wanted?.tree !== tree || wanted.aim.to !== "start" || wanted.aim.worst) return;
  wanted.aim.worst = worst;
  if (picture.value?.tree === tree && camera.value === seenAtFirst) takeAim(wanted.aim, picture.value, null);
}

async function show(tree: Tree, open: ReadonlySet<string>, aim: Aim): Promise<void> {
  const mine = { tree, open, aim };
  wanted = mine;
  const visible = visibleOf(tree, open);
  work.value = { state: "busy", items: visible.items.length };
  try {
    const layout = await layOut(visible, open);
    if (wanted !== mine) return;
    batch(() => {
      const before = picture.value;
      const now = { tree, open, visible, layout };
      picture.value = now;
      work.value = { state: "idle" };
      keepActive(tree, open, visible);
      takeAim(mine.aim, now, before);
    });
  } catch (error) {
    if (wanted === mine)
      work.value = { state: "failed", message: error instanceof Error ? error.message : String(error) };
  }
}

export function retry(): void {
  if (wanted) void show(wanted.tree, wanted.open, wanted.aim);
}

/** Give up a layout that takes too long: back to what was shown, or to closed groups. */
export function stop(): void {
  stopLayout();
  notice.value = "";
  const before = picture.value;
  if (before) {
    wanted = { ...before, aim: { to: "start" } };
    work.value = { state: "idle" };
  } else if (wanted) void show(wanted.tree, new Set(), { to: "start" });
}

function keepActive(tree: Tree, open: ReadonlySet<string>, visible: Visible): void {
  const there = visible.items.some(({ id }) => id === active.value);
  if (there) return;
  const item = tree.groups.get(active.value) ?? tree.ops.find(({ id }) => id === active.value);
  active.value = (item ? seenAs(item, open) : visible.items[0])?.id ?? "";
}

function takeAim(aim: Aim, { layout, visible, open }: Picture, before: Picture | null): void {
  if (aim.to === "start") {
    const beginning = visible.items.find(({ id }) => !open.has(id));
    const worst = aim.worst && layout.boxes.get(seenAs(aim.worst, open).id);
    if (beginning) camera.value = atFirst(layout, layout.boxes.get(beginning.id)!, screen.value, LEGIBLE, worst);
    seenAtFirst = camera.value;
    return;
  }
  const box = layout.boxes.get(aim.item.id);
  if (!box) return;
  if (aim.to === "center") {
    camera.value = centerd(box, screen.value, legibleSize());
    return;
  }
  const was = before?.layout.boxes.get(aim.item.id) ?? box;
  const { x, y, k } = camera.value;
  const held = { k, x: x + k * (was.x + was.width / 2 - box.x - box.width / 2), y: y + k * (was.y - box.y) };
  camera.value = showing(held, { ...box, height: Math.min(box.height, 80) }, screen.value);
}

function legibleSize(): number {
  return Math.min(1.2, Math.max(LEGIBLE + 0.2, camera.value.k));
}

export function toggle(group: Group): void {
  const { tree, open } = wanted!;
  const changed = new Set(open);
  if (!changed.delete(group.id)) changed.add(group.id);
  active.value = group.id;
  notice.value = "";
  void show(tree, changed, { to: "hold", item: group });
}

/** Opens the groups around an item and looks at it. */
export function reveal(item: Item): void {
  if (!wanted) return;
  const { tree, open } = wanted;
  active.value = item.id;
  const closed = groupsAround(item).filter((id) => !open.has(id));
  if (closed.length) void show(tree, new Set([...open, ...closed]), { to: "center", item });
  else if (picture.value?.open === open) takeAim({ to: "center", item }, picture.value, null);
  else wanted.aim = { to: "center", item };
}

export function openAll(): void {
  const { tree } = wanted!;
  const { open, isAll } = openedWithin(tree, MOST_ITEMS);
  const groups = tree.groups.size.toLocaleString("en");
  notice.value = isAll
    ? ""
    : `Opened ${open.size.toLocaleString("en")} of ${groups} groups: a picture holds at most ` +
      `${MOST_ITEMS.toLocaleString("en")} nodes. Open single groups, or find an op by its name.`;
  void show(tree, open, { to: "start" });
}

export function closeAll(): void {
  notice.value = "";
  void show(wanted!.tree, new Set(), { to: "start" });
}

export function fit(): void {
  if (picture.value) camera.value = fitted(picture.value.layout, screen.value);
}

export function zoom(factor: number, about = { x: screen.value.width / 2, y: screen.value.height / 2 }): void {
  if (!picture.value) return;
  const smallest = Math.min(0.1, fitted(picture.value.layout, screen.value).k);
  camera.value = notLost(zoomed(camera.value, factor, about, smallest), picture.value.layout, screen.value);
}

export function zoomIn(): void {
  zoom(ZOOM);
}

export function zoomOut(): void {
  zoom(1 / ZOOM);
}

export function pan(dx: number, dy: number): void {
  const { x, y, k } = camera.value;
  if (picture.value) camera.value = notLost({ k, x: x + dx, y: y + dy }, picture.value.layout, screen.value);
}

/** Puts a point of the picture into the middle. */
export function lookAt({ x, y }: Point): void {
  const aimed = centerd({ x, y, width: 0, height: 0 }, screen.value, camera.value.k);
  if (picture.value) camera.value = notLost(aimed, picture.value.layout, screen.value);
}

/** The middle stays the middle and an item stays in sight when the screen changes; a layout that came while there was no screen is aimed at again. */
export function resized(size: Size, kept: Item | undefined): void {
  const { width, height } = screen.value;
  if (size.width === width && size.height === height) return;
  screen.value = size;
  if (!width && picture.value && wanted) takeAim(wanted.aim, picture.value, null);
  else if (width) pan((size.width - width) / 2, (size.height - height) / 2);
  if (kept) keepInSight(kept);
}

/** Brings an item into sight and makes it the one that the keyboard stands on. */
export function goTo(item: Item, focus: boolean): void {
  active.value = item.id;
  takesFocus.value = focus;
  keepInSight(item);
}

function keepInSight(item: Item): void {
  const box = picture.value?.layout.boxes.get(item.id);
  if (box) camera.value = showing(camera.value, { ...box, height: Math.min(box.height, 80) }, screen.value);
}
