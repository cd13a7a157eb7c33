import assert from "node:assert/strict";
import { test } from "node:test";
import { buildTree, visibleOf } from "../src/graph/group.ts";
import {
  atFirst,
  boundsOf,
  boxSize,
  centerd,
  contains,
  fitted,
  isVast,
  mapSize,
  notLost,
  overlap,
  pathOf,
  routable,
  showing,
  sightOf,
  zoomed,
} from "../src/graph/picture.ts";

const SCREEN = { width: 1048, height: 548 };

test("a node has room for its label and its value", () => {
  const [short, long] = buildTree([
    { name: "a", type: "Add", inputs: [] },
    { name: "a_rather_long_name_of_an_op", type: "Add", inputs: [] },
  ]).ops;
  assert.ok(boxSize(long!).width > boxSize(short!).width);
  assert.ok(boxSize(short!).width >= "Add · -123.4 dB watch".length * 6.7);
});

test("where all reads all, only the nearest three producers are given to the layout", () => {
  const names = Array.from({ length: 12 }, (_, i) => `op${i}`);
  const dense = visibleOf(
    buildTree(names.map((name, i) => ({ name, type: "", inputs: names.slice(0, i) }))),
    new Set(),
  );
  assert.equal(dense.edges.length, 66);
  const kept = routable(dense);
  // 0 + 1 + 2 + 9 · 3
  assert.equal(kept.length, 30);
  assert.deepEqual(
    kept.filter(({ to }) => to.label === "op7").map(({ from }) => from.label),
    ["op6", "op5", "op4"],
  );
  const sparse = visibleOf(
    buildTree(names.map((name, i) => ({ name, type: "", inputs: i ? [names[i - 1]!] : [] }))),
    new Set(),
  );
  assert.equal(routable(sparse), sparse.edges);
});

test("corners are rounded by six pixels, or half of a shorter side", () => {
  assert.equal(
    pathOf([
      { x: 0, y: 0 },
      { x: 0, y: 20 },
    ]),
    "M0 0L0 20",
  );
  assert.equal(
    pathOf([
      { x: 0, y: 0 },
      { x: 0, y: 20 },
      { x: 8, y: 20 },
    ]),
    "M0 0L0 14Q0 20 4 20L8 20",
  );
});

test("boxes that overlap, contain, and go around points", () => {
  const box = { x: 0, y: 0, width: 10, height: 10 };
  assert.ok(overlap(box, { x: 10, y: 10, width: 1, height: 1 }));
  assert.ok(!overlap(box, { x: 11, y: 0, width: 1, height: 1 }));
  assert.ok(contains(box, { x: 2, y: 2, width: 8, height: 8 }));
  assert.ok(!contains(box, { x: 3, y: 2, width: 8, height: 8 }));
  assert.deepEqual(
    boundsOf([
      { x: 4, y: 9 },
      { x: 1, y: 12 },
    ]),
    { x: 1, y: 9, width: 3, height: 3 },
  );
});

test("fitting leaves a margin of 24 and never enlarges", () => {
  // (1048 - 48) / 2000 = 0.5 by width, (548 - 48) / 500 = 1 by height
  assert.deepEqual(fitted({ width: 2000, height: 500 }, SCREEN), { k: 0.5, x: 24, y: 149 });
  assert.equal(fitted({ width: 10, height: 10 }, SCREEN).k, 1);
});

test("the first picture is all of a small graph, and the beginning of a large one", () => {
  const beginning = { x: 3000, y: 0, width: 100, height: 40 };
  assert.deepEqual(atFirst({ width: 200, height: 500 }, beginning, SCREEN, 0.7), { k: 1, x: 424, y: 24 });
  assert.deepEqual(atFirst({ width: 200, height: 5000 }, beginning, SCREEN, 0.5), { k: 0.5, x: 474, y: 24 });
  // Too wide for the screen: the first node, whose middle is at 3050, goes to the middle.
  assert.deepEqual(atFirst({ width: 4000, height: 5000 }, beginning, SCREEN, 0.5), { k: 0.5, x: 524 - 1525, y: 24 });
});

test("what is worst is in sight at first, and no emptiness beyond the end", () => {
  const beginning = { x: 0, y: 0, width: 100, height: 40 };
  const first = (y: number) =>
    atFirst({ width: 200, height: 5000 }, beginning, SCREEN, 0.5, { x: 50, y, width: 100, height: 40 });
  // Half of 548 is 274; the middle at 2020 is seen at 1010 below the top.
  assert.deepEqual(first(2000), { k: 0.5, x: 474, y: 274 - 1010 });
  assert.deepEqual(first(300), { k: 0.5, x: 474, y: 24 });
  assert.deepEqual(first(4950), { k: 0.5, x: 474, y: 548 - 24 - 2500 });
});

test("a map is for what is more than two screens high or wide, and never thinner than half its width", () => {
  assert.equal(isVast({ width: 200, height: 2192 }, SCREEN, 0.5), false);
  assert.equal(isVast({ width: 200, height: 2193 }, SCREEN, 0.5), true);
  assert.equal(isVast({ width: 4193, height: 100 }, SCREEN, 0.5), true);
  assert.deepEqual(mapSize({ width: 1300, height: 2000 }, SCREEN), { width: 130, height: 200 });
  assert.deepEqual(mapSize({ width: 200, height: 5000 }, SCREEN), { width: 65, height: 500 });
});

test("zooming keeps the point under the mouse and stops at both ends", () => {
  const camera = { x: 100, y: 50, k: 1 };
  // The point (200, 100) of the screen is (100, 50) of the picture; at twice the size 200 - 2 · 100 = 0.
  assert.deepEqual(zoomed(camera, 2, { x: 200, y: 100 }, 0.1), { k: 2, x: 0, y: 0 });
  assert.equal(zoomed(camera, 100, { x: 0, y: 0 }, 0.1).k, 2.5);
  assert.equal(zoomed(camera, 0.001, { x: 0, y: 0 }, 0.1).k, 0.1);
});

test("centring, and moving just enough to show a box", () => {
  const box = { x: 1000, y: 100, width: 48, height: 48 };
  assert.deepEqual(centerd(box, SCREEN, 1), { k: 1, x: 524 - 1024, y: 274 - 124 });
  // It ends at 1048, at the edge; the margin is 24.
  assert.deepEqual(showing({ x: 0, y: 0, k: 1 }, box, SCREEN), { k: 1, x: -24, y: 0 });
  assert.deepEqual(showing({ x: -990, y: 0, k: 1 }, box, SCREEN), { k: 1, x: -976, y: 0 });
  assert.deepEqual(showing({ x: -300, y: 0, k: 1 }, box, SCREEN), { k: 1, x: -300, y: 0 });
  // Wider than the screen: its beginning.
  assert.deepEqual(showing({ x: 0, y: 0, k: 1 }, { x: 500, y: 100, width: 2000, height: 48 }, SCREEN), {
    k: 1,
    x: -476,
    y: 0,
  });
});

test("the picture cannot be pushed off the screen", () => {
  const all = { width: 200, height: 100 };
  assert.deepEqual(notLost({ x: 5000, y: 10, k: 1 }, all, SCREEN), { k: 1, x: 1000, y: 10 });
  assert.deepEqual(notLost({ x: -5000, y: -5000, k: 1 }, all, SCREEN), { k: 1, x: -152, y: -52 });
});

test("what is in sight, with some around it", () => {
  assert.deepEqual(sightOf({ x: -100, y: 5, k: 0.5 }, { width: 100, height: 50 }), {
    x: 200,
    y: -10,
    width: 200,
    height: 100,
  });
  assert.deepEqual(sightOf({ x: 0, y: 0, k: 1 }, { width: 100, height: 50 }, 1), {
    x: -100,
    y: -50,
    width: 300,
    height: 150,
  });
});
