import assert from "node:assert/strict";
import { test } from "node:test";
import {
  buildTree,
  type Group,
  groupsAround,
  type Item,
  MOST_CHILDREN,
  openedAtFirst,
  openedWithin,
  partsOf,
  seenAs,
  visibleOf,
} from "../src/graph/group.ts";
import type { GraphNode } from "../src/records.ts";

/** "name < input input" */
function rows(...lines: string[]): GraphNode[] {
  return lines.map((line) => {
    const [name, inputs] = line.split(" < ");
    return { name: name!, type: "Conv", inputs: inputs?.split(" ") ?? [] };
  });
}

function chain(count: number, name: (i: number) => string): GraphNode[] {
  return Array.from({ length: count }, (_, i) => ({ name: name(i), type: "Conv", inputs: i ? [name(i - 1)] : [] }));
}

function drawn(items: Item[]): unknown[] {
  return items.map((item) => (item.kind === "op" ? item.label : { [item.label]: drawn(item.children) }));
}

function everyGroup(items: Item[]): Group[] {
  return items.flatMap((item) => (item.kind === "group" ? [item, ...everyGroup(item.children)] : []));
}

const BLOCK = rows(
  "/stem/Conv",
  "/b/one/Conv < /stem/Conv",
  "/b/one/Relu < /b/one/Conv",
  "/b/two/Conv < /b/one/Relu /stem/Conv",
  "/b/two/Relu < /b/two/Conv",
  "/Add < /b/two/Relu /b/one/Relu",
);

test("names are cut at slashes, or at dots where there is no slash", () => {
  assert.deepEqual(partsOf("/layer1/layer1.0/Conv").parts, ["layer1", "layer1.0", "Conv"]);
  assert.deepEqual(partsOf("model.layers.0.mlp").parts, ["model", "layers", "0", "mlp"]);
  assert.deepEqual(partsOf("node_conv2d_17").parts, ["node_conv2d_17"]);
  assert.deepEqual(partsOf("a//b/").parts, ["a", "b"]);
  assert.deepEqual(partsOf("/").parts, ["/"]);
  assert.deepEqual(partsOf("").parts, [""]);
});

test("a hierarchy of names becomes groups in the order of the graph, and a single child takes the place of its group", () => {
  const tree = buildTree(BLOCK);
  assert.deepEqual(drawn(tree.top), [
    "stem/Conv",
    { b: [{ one: ["Conv", "Relu"] }, { two: ["Conv", "Relu"] }] },
    "Add",
  ]);
  assert.equal(tree.groups.size, 3);
  assert.equal((tree.top[1] as Group).ops, 4);
});

test("chains of single groups are merged with the separator of their names, and numbers say of what", () => {
  const tree = buildTree(
    rows("model.encoder.layers.0.attn", "model.encoder.layers.0.mlp", "model.encoder.layers.1.attn.q.w"),
  );
  assert.deepEqual(drawn(tree.top), [
    { "model.encoder.layers": [{ "layers.0": ["attn", "mlp"] }, "layers.1.attn.q.w"] },
  ]);
});

test("an op and a group may have the same name", () => {
  assert.deepEqual(drawn(buildTree(rows("a", "a/b", "a/c")).top), ["a", { a: ["b", "c"] }]);
});

test("5,000 names without hierarchy become nested runs of consecutive ops", () => {
  const tree = buildTree(chain(5000, (i) => `node_conv2d_${i}`));
  // The cube root of 5,000 is 17.1: 278 runs of 18; the square root of 278 is 16.7: 17 runs of 16 or 17 runs.
  assert.equal(tree.top.length, 17);
  const all = everyGroup(tree.top);
  assert.equal(all.length, 17 + 278);
  assert.ok(
    all.every(({ children, label }) => children.length <= MOST_CHILDREN && /^Conv × (\d+) · \d+–\d+$/.test(label)),
  );
  assert.match(tree.top[0]!.label, / · 1–/);
  assert.match(tree.top.at(-1)!.label, /–5000$/);
  const ops = (items: Item[]): number[] => items.flatMap((i) => (i.kind === "op" ? [i.index] : ops(i.children)));
  assert.deepEqual(
    ops(tree.top),
    Array.from({ length: 5000 }, (_, i) => i),
  );
});

test("ops without hierarchy are cut where blocks end, and named by their types", () => {
  // 50 blocks of a Conv, a Relu, a Conv and an Add that reads the end of the block before.
  const types = ["Conv", "Relu", "Conv", "Add"];
  const ops = Array.from({ length: 200 }, (_, i): GraphNode => {
    const before = i ? [`op${i - 1}`] : [];
    return { name: `op${i}`, type: types[i % 4]!, inputs: i % 4 === 3 && i > 4 ? [...before, `op${i - 4}`] : before };
  });
  const { top } = buildTree(ops);
  // The root of 200 is 14.1: 14 runs of 14.3, each from the end of a block to the nearest one.
  assert.equal(top.length, 14);
  const groups = top as Group[];
  assert.ok(groups.every(({ ops }) => ops % 4 === 0 && ops >= 12 && ops <= 16));
  assert.equal(groups[0]!.label, "Conv × 6, Relu × 3 · 1–12");
});

test("60 children stay, 61 are split into 8 runs, groups among them by their names", () => {
  assert.equal(buildTree(chain(60, (i) => `op${i}`)).top.length, 60);
  assert.equal(buildTree(chain(61, (i) => `op${i}`)).top.length, 8);
  const layers = buildTree(chain(200, (i) => `/layer.${i >> 1}/${i % 2 ? "Relu" : "Conv"}`));
  assert.deepEqual(
    layers.top.slice(0, 2).map(({ label }) => label),
    ["layer.0 … layer.9", "layer.10 … layer.19"],
  );
});

test("edges between closed groups: none twice, none to itself", () => {
  const tree = buildTree(BLOCK);
  const named = (open: string[]) =>
    visibleOf(tree, new Set(open)).edges.map(
      ({ from, to, count }) => `${from.label}>${to.label}${count > 1 ? ` x${count}` : ""}`,
    );
  // stem feeds b twice and b feeds Add twice; what happens inside b is not seen.
  assert.deepEqual(named([]), ["stem/Conv>b x2", "b>Add x2"]);
  assert.deepEqual(named(["group:/b"]), ["stem/Conv>one", "one>two", "stem/Conv>two", "two>Add", "one>Add"]);
  assert.deepEqual(
    visibleOf(tree, new Set(["group:/b"])).items.map(({ label }) => label),
    ["stem/Conv", "b", "one", "two", "Add"],
  );
});

test("a group that is open inside a closed one is not seen", () => {
  const seen = visibleOf(buildTree(BLOCK), new Set(["group:/b/one"]));
  assert.deepEqual(
    seen.items.map(({ label }) => label),
    ["stem/Conv", "b", "Add"],
  );
});

test("inputs that are no ops, that come twice or that are the op itself make no edge", () => {
  assert.deepEqual(buildTree(rows("a < image a", "b < a a weights")).edges, [[0, 1]]);
});

test("the groups to open for an op, and what stands for it while they are closed", () => {
  const tree = buildTree(BLOCK);
  const op = tree.byName.get("/b/two/Relu")!;
  assert.deepEqual(groupsAround(op), ["group:/b", "group:/b/two"]);
  assert.deepEqual(groupsAround(tree.byName.get("/Add")!), []);
  assert.equal(seenAs(op, new Set()).label, "b");
  assert.equal(seenAs(op, new Set(["group:/b/two"])).label, "b");
  assert.equal(seenAs(op, new Set(["group:/b"])).label, "two");
  assert.equal(seenAs(op, new Set(["group:/b", "group:/b/two"])), op);
});

test("levels are opened while they fit", () => {
  const tree = buildTree(BLOCK);
  // 3 items at the top, 5 with b open, 9 with all open.
  assert.deepEqual([...openedWithin(tree, 9).open], ["group:/b", "group:/b/one", "group:/b/two"]);
  assert.equal(openedWithin(tree, 9).isAll, true);
  assert.deepEqual(openedWithin(tree, 8), { open: new Set(["group:/b", "group:/b/one"]), isAll: false });
  assert.deepEqual([...openedAtFirst(tree, 40)], ["group:/b", "group:/b/one", "group:/b/two"]);
  assert.deepEqual(openedWithin(buildTree([]), 9), { open: new Set(), isAll: true });
});

test("the first picture has whole levels, unless it would show next to nothing", () => {
  // 20 layers of 3: 20 are enough, so none of them is opened alone.
  const many = buildTree(chain(60, (i) => `/layer.${Math.floor(i / 3)}/op${i}`));
  assert.deepEqual([...openedAtFirst(many, 40)], []);
  // Two groups of 50: both would be 102, which is more than 40 + 60, so one is opened.
  const two = buildTree(chain(100, (i) => `/half.${Math.floor(i / 50)}/op${i}`));
  assert.deepEqual([...openedAtFirst(two, 40)], ["group:/half.0"]);
});

test("names that number ops by type are flat: no groups of types", () => {
  const rows = ["Conv", "Add", "Conv", "Add"].map((type, i) => ({
    name: `p2o.${type}.${i}`,
    type,
    inputs: i ? [`p2o.${i % 2 ? "Conv" : "Add"}.${i - 1}`] : [],
  }));
  assert.deepEqual(
    buildTree(rows).top.map(({ label }) => label),
    ["p2o.Conv.0", "p2o.Add.1", "p2o.Conv.2", "p2o.Add.3"],
  );
});
