import assert from "node:assert/strict";
import { test } from "node:test";
import { buildTree, visibleOf } from "../src/graph/group.ts";
import { neighbor } from "../src/graph/walk.ts";

const tree = buildTree([
  { name: "/in", type: "", inputs: [] },
  { name: "/g/a", type: "", inputs: ["/in"] },
  { name: "/g/b", type: "", inputs: ["/g/a"] },
  { name: "/out", type: "", inputs: ["/g/b", "/in"] },
]);
const open = new Set(["group:/g"]);
const visible = visibleOf(tree, open);

function led(key: string, from: string): string | null | undefined {
  const id = tree.byName.get(from)?.id ?? from;
  const item = neighbor(key, id, visible, open);
  return item === null ? null : item?.label;
}

test("down is the first consumer, up the first producer", () => {
  assert.equal(led("ArrowDown", "/in"), "a");
  assert.equal(led("ArrowDown", "/g/b"), "out");
  assert.equal(led("ArrowUp", "/out"), "b");
  assert.equal(led("ArrowDown", "/out"), null);
});

test("an open group leads down to its first child; without a producer, up leads to the group around", () => {
  assert.equal(led("ArrowDown", "group:/g"), "a");
  assert.equal(led("ArrowUp", "group:/g"), null);
  assert.equal(led("ArrowUp", "/in"), null);
});

test("left and right follow the order of the graph, Home and End go to its ends", () => {
  assert.equal(led("ArrowRight", "/in"), "g");
  assert.equal(led("ArrowRight", "group:/g"), "a");
  assert.equal(led("ArrowLeft", "/out"), "b");
  assert.equal(led("ArrowRight", "/out"), null);
  assert.equal(led("Home", "/out"), "in");
  assert.equal(led("End", "/in"), "out");
  assert.equal(led("x", "/in"), undefined);
});
