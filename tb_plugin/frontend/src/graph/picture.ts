// The geometry of the picture: sizes of nodes, lines of edges, and the camera that looks at them.

import type { Edge, Item, Visible } from "./group.ts";

export interface Point {
  x: number;
  y: number;
}

export interface Size {
  width: number;
  height: number;
}

export interface Box extends Point, Size {}

/** A point of the picture is seen at (x + k · its x, y + k · its y). */
export interface Camera extends Point {
  k: number;
}

export const NODE_HEIGHT = 42;
export const LONGEST_LABEL = 34;
export const LONGEST_VALUE = 24;
/** Widths in pixels that no usual font exceeds, and the length of " · -123.4 dB watch". */
const LABEL_CHARACTER = 7.9;
const VALUE_CHARACTER = 6.7;
const VALUE_LENGTH = 18;
const EDGES_A_NODE = 3;
const CORNER = 6;
const LARGEST = 2.5;
const MARGIN = 24;
const MAP_WIDTH = 130;

/** Large enough for the label and for any value below it, so that another column does not move the nodes. */
export function boxSize(item: Item): Size {
  const below = item.kind === "op" ? item.type.length : `${item.ops} ops worst`.length;
  const button = item.kind === "group" ? 28 : 0;
  const label = Math.min(LONGEST_LABEL, item.label.length) * LABEL_CHARACTER;
  const value = (below + VALUE_LENGTH) * VALUE_CHARACTER;
  return { width: Math.ceil(Math.max(label, value) + button + 26), height: NODE_HEIGHT };
}

/** The edges to give to the layout, which takes minutes where everything reads everything before it: then only those
 * from the nearest producers of each consumer. The others are drawn straight. */
export function routable({ items, edges }: Visible): Edge[] {
  if (edges.length <= EDGES_A_NODE * items.length) return edges;
  const place = new Map(items.map((item, i) => [item.id, i]));
  const into = Map.groupBy(edges, ({ to }) => to.id);
  const distance = (edge: Edge) => Math.abs(place.get(edge.to.id)! - place.get(edge.from.id)!);
  return [...into.values()].flatMap((found) => found.sort((a, b) => distance(a) - distance(b)).slice(0, EDGES_A_NODE));
}

/** An SVG path with rounded corners. */
export function pathOf(points: Point[]): string {
  const at = (i: number) => points[i]!;
  let path = `M${at(0).x} ${at(0).y}`;
  for (let i = 1; i < points.length - 1; i++) {
    const before = towards(at(i), at(i - 1));
    const after = towards(at(i), at(i + 1));
    path += `L${before.x} ${before.y}Q${at(i).x} ${at(i).y} ${after.x} ${after.y}`;
  }
  const end = points.at(-1)!;
  return `${path}L${end.x} ${end.y}`;
}

function towards(from: Point, to: Point): Point {
  const length = Math.hypot(to.x - from.x, to.y - from.y);
  const share = length ? Math.min(CORNER, length / 2) / length : 0;
  return { x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share };
}

export function boundsOf(points: Point[]): Box {
  const xs = points.map(({ x }) => x);
  const ys = points.map(({ y }) => y);
  const x = Math.min(...xs);
  const y = Math.min(...ys);
  return { x, y, width: Math.max(...xs) - x, height: Math.max(...ys) - y };
}

export function overlap(a: Box, b: Box): boolean {
  return a.x <= b.x + b.width && b.x <= a.x + a.width && a.y <= b.y + b.height && b.y <= a.y + a.height;
}

export function contains(outer: Box, inner: Box): boolean {
  return (
    inner.x >= outer.x &&
    inner.y >= outer.y &&
    inner.x + inner.width <= outer.x + outer.width &&
    inner.y + inner.height <= outer.y + outer.height
  );
}

/** All of a picture, but not enlarged. */
export function fitted(all: Size, screen: Size): Camera {
  const k = Math.min(
    1,
    (screen.width - 2 * MARGIN) / Math.max(1, all.width),
    (screen.height - 2 * MARGIN) / Math.max(1, all.height),
  );
  return { k, x: (screen.width - k * all.width) / 2, y: (screen.height - k * all.height) / 2 };
}

/** All of it if it can be read then, else where it begins, or what is `worst` in it, at a size at which it can. */
export function atFirst(all: Size, beginning: Box, screen: Size, legible: number, worst?: Box): Camera {
  const whole = fitted(all, screen);
  if (whole.k >= legible) return whole;
  const looksAt = worst ?? beginning;
  const middle = legible * all.width <= screen.width ? all.width / 2 : looksAt.x + looksAt.width / 2;
  const start = { k: legible, x: screen.width / 2 - legible * middle, y: MARGIN };
  if (!worst || contains(sightOf(start, screen), worst)) return start;
  // No further than to the end of the picture.
  const end = Math.min(MARGIN, screen.height - MARGIN - legible * all.height);
  return { ...start, y: Math.max(end, Math.min(MARGIN, centerd(worst, screen, legible).y)) };
}

/** Where a map of the whole picture is needed: at this size it is more than twice as high or wide as the screen. */
export function isVast(all: Size, screen: Size, k: number): boolean {
  return k * all.height > 2 * screen.height || k * all.width > 2 * screen.width;
}

/** The map's size on the screen; a picture that is much higher than wide is widened. */
export function mapSize(all: Size, screen: Size): Size {
  const k = Math.min(MAP_WIDTH / all.width, (screen.height - 2 * MARGIN) / all.height);
  return { width: Math.max(MAP_WIDTH / 2, k * all.width), height: k * all.height };
}

/** The nearest place from which at least an edge of the picture is seen. */
export function notLost(camera: Camera, all: Size, screen: Size): Camera {
  const keep = (at: number, length: number, available: number) =>
    Math.max(Math.min(2 * MARGIN, length) - length, Math.min(available - 2 * MARGIN, at));
  const { x, y, k } = camera;
  return { k, x: keep(x, k * all.width, screen.width), y: keep(y, k * all.height, screen.height) };
}

export function centerd(box: Box, screen: Size, k: number): Camera {
  return {
    k,
    x: screen.width / 2 - k * (box.x + box.width / 2),
    y: screen.height / 2 - k * (box.y + box.height / 2),
  };
}

/** Larger or smaller about a point of the screen. */
export function zoomed(camera: Camera, factor: number, about: Point, smallest: number): Camera {
  const k = Math.min(LARGEST, Math.max(smallest, camera.k * factor));
  const by = k / camera.k;
  return { k, x: about.x - (about.x - camera.x) * by, y: about.y - (about.y - camera.y) * by };
}

/** Moved no more than it takes to see a box; of one that is larger than the screen, its beginning. */
export function showing(camera: Camera, box: Box, screen: Size): Camera {
  const shift = (start: number, length: number, available: number) => {
    if (start < MARGIN) return MARGIN - start;
    return Math.min(0, Math.max(available - MARGIN - length - start, MARGIN - start));
  };
  const { k } = camera;
  return {
    k,
    x: camera.x + shift(camera.x + k * box.x, k * box.width, screen.width),
    y: camera.y + shift(camera.y + k * box.y, k * box.height, screen.height),
  };
}

/** The part of the picture that is on the screen, and so many screens around it. */
export function sightOf(camera: Camera, screen: Size, around = 0): Box {
  const width = screen.width / camera.k;
  const height = screen.height / camera.k;
  return {
    x: -camera.x / camera.k - around * width,
    y: -camera.y / camera.k - around * height,
    width: width * (1 + 2 * around),
    height: height * (1 + 2 * around),
  };
}
