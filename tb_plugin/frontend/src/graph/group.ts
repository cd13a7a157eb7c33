// The model as a tree of groups by the parts of the ops' names, and what of it is seen. However large or flat the
// model is, no group has more than MOST_CHILDREN children, so that opening one never floods the picture.

import type { GraphNode } from "../records.ts";

export interface Op {
  kind: "op";
  id: string;
  name: string;
  type: string;
  /** The part of the name that the groups around it do not say. */
  label: string;
  /** Position in the graph. */
  index: number;
  parent: Group | null;
}

export interface Group {
  kind: "group";
  id: string;
  label: string;
  children: Item[];
  parent: Group | null;
  /** How many ops are in it, at any depth. */
  ops: number;
}

export type Item = Op | Group;

export interface Tree {
  /** What is there when all groups are closed. */
  top: Item[];
  ops: Op[];
  byName: ReadonlyMap<string, Op>;
  groups: ReadonlyMap<string, Group>;
  /** Producer and consumer, by position. */
  edges: [number, number][];
}

export interface Edge {
  id: string;
  from: Item;
  to: Item;
  /** How many edges of the model it stands for. */
  count: number;
}

export interface Visible {
  /** Each open group before its children, in the order of the graph. */
  items: Item[];
  edges: Edge[];
}

export const MOST_CHILDREN = 60;
/** Below this, single groups are opened although not all of their level fit. */
const FEW = 12;
const MOST_TYPES = 2;

/** Names with a slash are paths of slashes only: in "layer1/layer1.0/conv1" the dot belongs to a name. */
export function partsOf(name: string): { parts: string[]; separator: "/" | "." } {
  const separator = name.includes("/") ? "/" : ".";
  const parts = name.split(separator).filter(Boolean);
  return { parts: parts.length ? parts : [name], separator };
}

interface Branch {
  id: string;
  name: string;
  separator: string;
  branches: Map<string, Branch>;
  /** In order of their first op. */
  children: ({ label: string; branch: Branch } | { label: string; op: Op })[];
}

/** Some exporters number ops by type, as "p2o.Conv.28": groups of them would be op types, and the graph a tangle. */
function namedByType(rows: GraphNode[]): boolean {
  const dotted = rows.filter(({ name }) => name.includes(".") && !name.includes("/"));
  const byType = dotted.filter(({ name, type }) => name.split(".").slice(0, -1).includes(type));
  return byType.length > dotted.length / 2;
}

export function buildTree(rows: GraphNode[]): Tree {
  const root = newBranch("", "", "");
  const isFlat = namedByType(rows);
  const byName = new Map<string, Op>();
  const ops = rows.map((row, index): Op => {
    const op: Op = { kind: "op", id: `op:${index}`, name: row.name, type: row.type, label: "", index, parent: null };
    if (!byName.has(row.name)) byName.set(row.name, op);
    const { parts, separator } = isFlat ? { parts: [row.name], separator: "." } : partsOf(row.name);
    let at = root;
    for (const part of parts.slice(0, -1)) at = inside(at, part, separator);
    at.children.push({ label: parts.at(-1)!, op });
    return op;
  });
  const edges = edgesOf(rows, byName);
  const top = arranged(root, passingOf(edges, ops.length));
  const groups = new Map<string, Group>();
  settle(top, null, groups);
  return { top, ops, byName, groups, edges };
}

function newBranch(id: string, name: string, separator: string): Branch {
  return { id, name, separator, branches: new Map(), children: [] };
}

function inside(at: Branch, part: string, separator: string): Branch {
  const key = separator + part;
  let branch = at.branches.get(key);
  if (!branch) {
    branch = newBranch(at.id + key, part, separator);
    at.branches.set(key, branch);
    at.children.push({ label: part, branch });
  }
  return branch;
}

/** The children of a branch; a branch with a single child becomes that child, with both names. */
function arranged(branch: Branch, passing: Passing): Item[] {
  const items = branch.children.map((child): Item => {
    if ("op" in child) {
      child.op.label = child.label;
      return child.op;
    }
    const children = arranged(child.branch, passing);
    const only = children.length === 1 ? children[0]! : null;
    if (only) {
      only.label = `${child.label}${child.branch.separator}${only.label}`;
      return only;
    }
    return { kind: "group", id: `group:${child.branch.id}`, label: child.label, children, parent: null, ops: 0 };
  });
  // A bare number says nothing: "layer.0" does. Alone it is merged, which adds the name anyway.
  for (const item of items.length > 1 && branch.name ? items : []) {
    if (/^\d+\b/.test(item.label)) item.label = `${branch.name}${branch.separator}${item.label}`;
  }
  return inRuns(items, branch.id, passing);
}

interface Stretch {
  item: Item;
  from: number;
  to: number;
}

/** Too many children become runs of consecutive ones, of about even size on every level. */
function inRuns(items: Item[], id: string, passing: Passing): Item[] {
  let stretches = items.map((item, i): Stretch => ({ item, from: i, to: i }));
  while (stretches.length > MOST_CHILDREN) {
    const count = stretches.length;
    let levels = 2;
    while (MOST_CHILDREN ** levels < count) levels++;
    const runs = Math.ceil(count / Math.ceil(count ** (1 / levels)));
    const at = stretches.map(({ from }) => passing(items[from]!));
    const ends = Array.from({ length: runs + 1 }, (_, i) => cut(at, Math.round((i * count) / runs), count / runs));
    stretches = Array.from({ length: runs }, (_, i) => runOf(items, stretches.slice(ends[i], ends[i + 1]), id));
  }
  return stretches.map(({ item }) => item);
}

/** The end of a block or a stage near an even cut: where the fewest tensors go on, just before more do. */
function cut(passing: number[], even: number, size: number): number {
  if (even === 0 || even === passing.length) return even;
  const reach = Math.floor(Math.min(size / 3, (MOST_CHILDREN - Math.ceil(size)) / 2));
  let best = even;
  const cost = (at: number) =>
    4 * passing[at]! - ((passing[at + 1] ?? 0) > passing[at]! ? 1 : 0) + Math.abs(at - even) / (reach + 1);
  for (let at = Math.max(1, even - reach); at <= Math.min(passing.length - 1, even + reach); at++) {
    if (cost(at) < cost(best)) best = at;
  }
  return best;
}

function runOf(items: Item[], members: Stretch[], id: string): Stretch {
  const { from } = members[0]!;
  const { to } = members.at(-1)!;
  const inside = items.slice(from, to + 1);
  const ops = inside.filter((item) => item.kind === "op");
  const label =
    ops.length === inside.length
      ? `${typesOf(ops)} · ${from + 1}–${to + 1}`
      : `${items[from]!.label} … ${items[to]!.label}`;
  const children = members.map(({ item }) => item);
  return { from, to, item: { kind: "group", id: `run:${id}#${from}-${to}`, label, children, parent: null, ops: 0 } };
}

/** The most frequent types: "Conv × 12, Add × 4". */
function typesOf(ops: Op[]): string {
  const counted = [...Map.groupBy(ops, ({ type }) => type || "op")].map(([type, { length }]) => ({ type, length }));
  const most = counted.sort((a, b) => b.length - a.length).slice(0, MOST_TYPES);
  return most.map(({ type, length }) => `${type} × ${length}`).join(", ");
}

/** How many tensors are still to be read when it is an item's turn. */
type Passing = (item: Item) => number;

function passingOf(edges: [number, number][], count: number): Passing {
  const last = new Map<number, number>();
  for (const [from, to] of edges) if (to > from) last.set(from, Math.max(to, last.get(from) ?? 0));
  const change = new Int32Array(count + 2);
  for (const [from, to] of last) {
    change[from + 1]!++;
    change[to + 1]!--;
  }
  let passing = 0;
  const found = change.map((one) => {
    passing += one;
    return passing;
  });
  const first = (item: Item): number => (item.kind === "op" ? item.index : first(item.children[0]!));
  return (item) => found[first(item)]!;
}

function settle(items: Item[], parent: Group | null, groups: Map<string, Group>): number {
  let count = 0;
  for (const item of items) {
    item.parent = parent;
    if (item.kind === "op") {
      count++;
      continue;
    }
    groups.set(item.id, item);
    item.ops = settle(item.children, item, groups);
    count += item.ops;
  }
  return count;
}

function edgesOf(rows: GraphNode[], byName: ReadonlyMap<string, Op>): [number, number][] {
  return rows.flatMap((row, to) =>
    [...new Set(row.inputs)].flatMap((name): [number, number][] => {
      const from = byName.get(name)?.index;
      return from === undefined || from === to ? [] : [[from, to]];
    }),
  );
}

/** What is seen when these groups are open: no edge twice, none from a closed group to itself. */
export function visibleOf(tree: Tree, open: ReadonlySet<string>): Visible {
  const items: Item[] = [];
  const seenAs = new Array<Item>(tree.ops.length);
  const show = (shown: Item[], within: Item | null) => {
    for (const item of shown) {
      if (!within) items.push(item);
      if (item.kind === "op") seenAs[item.index] = within ?? item;
      else show(item.children, within ?? (open.has(item.id) ? null : item));
    }
  };
  show(tree.top, null);
  const edges = new Map<string, Edge>();
  for (const [producer, consumer] of tree.edges) {
    const from = seenAs[producer]!;
    const to = seenAs[consumer]!;
    if (from === to) continue;
    const id = `${from.id}>${to.id}`;
    const edge = edges.get(id);
    if (edge) edge.count++;
    else edges.set(id, { id, from, to, count: 1 });
  }
  return { items, edges: [...edges.values()] };
}

/** The groups to open so that an item is seen, the outermost first. */
export function groupsAround(item: Item): string[] {
  return item.parent ? [...groupsAround(item.parent), item.parent.id] : [];
}

/** What stands for an item while some of the groups around it are closed. */
export function seenAs(item: Item, open: ReadonlySet<string>): Item {
  let seen = item;
  for (let at = item.parent; at; at = at.parent) if (!open.has(at.id)) seen = at;
  return seen;
}

/** Level after level while at most so many items are seen; of the level that does not fit, as many groups as do. */
export function openedWithin(tree: Tree, most: number): { open: Set<string>; isAll: boolean } {
  const { open, level, seen } = wholeLevels(tree, most);
  openOneByOne(level, open, seen, most);
  return { open, isAll: level.length === 0 };
}

/** For the first picture: whole levels, and single groups only when it would show next to nothing otherwise. */
export function openedAtFirst(tree: Tree, most: number): Set<string> {
  const { open, level, seen } = wholeLevels(tree, most);
  if (seen < FEW) openOneByOne(level, open, seen, most + MOST_CHILDREN);
  return open;
}

function wholeLevels(tree: Tree, most: number): { open: Set<string>; level: Group[]; seen: number } {
  const open = new Set<string>();
  let level = tree.top.filter((item) => item.kind === "group");
  let seen = tree.top.length;
  while (level.length) {
    const next = level.flatMap(({ children }) => children);
    if (seen + next.length > most) break;
    for (const group of level) open.add(group.id);
    seen += next.length;
    level = next.filter((item) => item.kind === "group");
  }
  return { open, level, seen };
}

function openOneByOne(level: Group[], open: Set<string>, seenBefore: number, most: number): void {
  let seen = seenBefore;
  for (const group of level) {
    if (seen + group.children.length > most) continue;
    open.add(group.id);
    seen += group.children.length;
  }
}
