// The state with a page and a server made by hand around it: what the link says is what is shown.

import assert from "node:assert/strict";
import { before, test } from "node:test";
import { container, zipped } from "./tables.ts";

const runs = [
  {
    name: "a",
    kinds: { ops: { version: 2, steps: [0, 5], wall_time: 1 }, trial: { version: 2, steps: [0], wall_time: 1 } },
  },
  { name: "b", kinds: { ops: { version: 2, steps: [0], wall_time: 1 } } },
  { name: "only-trial", kinds: { trial: { version: 2, steps: [0], wall_time: 1 } } },
];
const asked: string[] = [];
const stamps: (string | null)[] = [];
let listed: unknown = runs;

function answer(url: URL): Response {
  stamps.push(url.searchParams.get("stamp"));
  url.searchParams.delete("stamp");
  asked.push(`${url.pathname.split("/").at(-1)}${url.search}`);
  if (url.pathname.endsWith("/runs")) return Response.json({ version: 2, runs: listed });
  if (url.pathname.endsWith("/record")) {
    const [first, ...rest] = url.searchParams.getAll("run");
    const parts = [
      { run: first, step: 0, kind: "trial", rows: 1, meta: {}, blobs: [0] },
      ...rest.map((run) => ({ run, kind: "trial", error: "damaged" })),
    ];
    return new Response(container({ parts }, [zipped('[{"name":"t","accuracy":0.5}]')]));
  }
  const parts = url.searchParams
    .getAll("run")
    .flatMap((run) =>
      url.searchParams
        .getAll("name")
        .map((name) => ({ run, name, step: 0, rows: 2, column: { name, stored: "f4" }, blob: 0 })),
    );
  return new Response(container({ parts }, [zipped(new Uint8Array(Float32Array.of(1, 2).buffer))]));
}

const location = {
  hash: "",
  get href() {
    return `http://tb/${this.hash}`;
  },
};
const places: string[] = [];
const history = {
  state: null,
  replaceState: (_state: unknown, _title: string, hash: string) => {
    location.hash = hash;
  },
  pushState: (_state: unknown, _title: string, hash: string) => {
    places.push(hash);
    location.hash = hash;
  },
};
const stored = new Map<string, string>();
let hashchange = () => {};
let fails = false;
const parent = {
  location,
  history,
  postMessage: () => {},
  addEventListener: (_type: string, listener: () => void) => {
    hashchange = listener;
  },
};
Object.assign(globalThis, {
  window: { parent },
  MessageChannel: class {
    port1 = {};
    port2 = {};
  },
  fetch: async (url: URL) => {
    if (fails) throw new TypeError("Failed to fetch");
    return answer(url);
  },
  localStorage: {
    getItem: (key: string) => stored.get(key) ?? null,
    setItem: (key: string, value: string) => stored.set(key, value),
  },
});

const state = await import("../src/state.ts");

let reading = 0;
for (const read of ["arrayBuffer", "json"] as const) {
  const plain = Response.prototype[read];
  Response.prototype[read] = function (this: Response) {
    reading += 1;
    return plain.call(this).finally(() => {
      reading -= 1;
    });
  };
}

/** When every answer has been read, and nothing was asked for after the last one. */
async function settled(): Promise<void> {
  for (let quiet = 0; quiet < 3; quiet = reading ? 0 : quiet + 1)
    await new Promise((resolve) => setTimeout(resolve, 5));
}

before(async () => {
  location.hash =
    "#quantization&p.quantization.run=b&p.quantization.sort=-a_mse,name&p.quantization.filter=conv%201&p.quantization.compare=a%7Cb";
  stored.set("inc-tb.quantization.columns", '{"columns":["name","a_mse"],"pinned":2}');
  state.start(["ops", "trials", "graph"]);
  await settled();
});

test("the link is followed, and what was remembered is there", () => {
  assert.equal(state.run.value, "b");
  assert.deepEqual(state.sort.value, [
    { column: "a_mse", descending: true },
    { column: "name", descending: false },
  ]);
  assert.equal(state.filter.value.text, "conv 1");
  assert.deepEqual(state.compared.value, ["a", "b"]);
  assert.deepEqual(state.columns.value, ["name", "a_mse"]);
  assert.equal(state.pinned.value, 2);
});

test("the link mirrors the state", () => {
  state.view.value = "trials";
  state.openOp("/conv 1&2/Conv");
  const query = new URLSearchParams(location.hash.slice(1));
  assert.equal(query.get("p.quantization.view"), "trials");
  assert.equal(query.get("p.quantization.op"), "/conv 1&2/Conv");
  assert.equal(query.get("p.quantization.run"), "b");
  assert.ok(location.hash.startsWith("#quantization&"));
  assert.equal(places.length, 1); // the view is a place to come back to, the op is not
  assert.ok(state.link({ run: "a" }).startsWith("http://tb/#quantization&"));
});

test("another tab of TensorBoard keeps its own link", () => {
  location.hash = "#timeseries";
  state.openOp("/other");
  assert.equal(location.hash, "#timeseries");
  location.hash = "#quantization";
});

test("columns asked for at once travel in one request, and only once", async () => {
  asked.length = 0;
  state.column("x");
  state.column("y");
  state.column("x");
  await settled();
  assert.deepEqual(asked, ["columns?run=b&name=x&name=y"]);
  assert.equal(state.column("x").state, "ready");
});

test("the same column of several runs is one request", async () => {
  asked.length = 0;
  for (const run of ["a", "b"]) state.column("z", run);
  await settled();
  assert.deepEqual(asked, ["columns?run=a&run=b&name=z"]);
});

test("a chosen step is asked for", async () => {
  state.chooseRun("a");
  assert.deepEqual(state.steps.value, [0, 5]);
  state.step.value = 0;
  asked.length = 0;
  state.column("x");
  await settled();
  assert.deepEqual(asked, ["columns?run=a&step=0&name=x"]);
});

test("one damaged trial does not hide the others", async () => {
  state.trials.value;
  await settled();
  assert.deepEqual(state.trials.value, {
    state: "ready",
    value: [
      { run: "a", trial: { name: "t", accuracy: 0.5 }, error: "" },
      { run: "b", trial: null, error: "" },
      { run: "only-trial", trial: null, error: "damaged" },
    ],
  });
});

test("a reload shows new runs, keeps what did not change, and reads again what did", async () => {
  state.chooseRun("b");
  state.column("x");
  await settled();
  asked.length = 0;
  listed = [...runs, { name: "c", kinds: { ops: { version: 2, steps: [0], wall_time: 9 } } }];
  await state.reload();
  assert.equal(state.column("x").state, "ready");
  assert.deepEqual(
    state.shownRuns.value.map(({ name }) => name),
    ["a", "b", "only-trial", "c"],
  );
  assert.deepEqual(asked, ["runs"]);
  listed = [{ ...runs[1], kinds: { ops: { version: 2, steps: [0, 1], wall_time: 10 } } }];
  await state.reload();
  assert.equal(state.column("x").state, "ready"); // what is known stays in sight until the new one is there
  await settled();
  assert.deepEqual(asked, ["runs", "runs", "columns?run=b&name=x"]);
  assert.equal(stamps.at(-1), "10"); // tells the server that what it found for the run before does not hold
});

test("a run that disappears is told, and another one is shown", () => {
  state.chooseRun("a");
  assert.equal(state.run.value, "b");
  assert.equal(state.missingRun.value, "a");
});

test("everything in the link comes back, as do odd names", async () => {
  listed = runs;
  await state.reload();
  state.chooseRun("a");
  state.step.value = 0;
  state.view.value = "graph";
  state.openOp("/é b|c/Conv");
  state.filter.value = { text: "a+b", regex: true, types: ["Conv", "x|y"], verdicts: ["bad"] };
  state.chosenSort.value = [];
  state.compared.value = ["a|b", "ü &=%", "c"];
  state.chosenMetric.value = "a_mse";
  state.matrix.value = { ...state.matrix.value, difference: true, text: "conv" };
  const link = location.hash;
  const { step, view, op, filter, sort, compared, metric, matrix } = state;
  const shown = () => [step, view, op, filter, sort, compared, metric, matrix].map((signal) => signal.value);
  const before = shown();
  location.hash = "#quantization";
  hashchange();
  assert.deepEqual(state.sort.value, [{ column: "added_sqnr_db", descending: false }]);
  assert.deepEqual(state.compared.value, []);
  location.hash = link;
  hashchange();
  assert.deepEqual(shown(), before);
  const keys = [...new URLSearchParams(link.slice(1)).keys()];
  assert.deepEqual(keys, [...new Set(keys)]); // TensorBoard keeps one value a key
});

test("while another tab of TensorBoard is shown nothing changes", () => {
  const compared = state.compared.value;
  location.hash = "#timeseries&p.quantization.compare=c";
  hashchange();
  assert.deepEqual(state.compared.value, compared);
  location.hash = "#quantization";
});

test("a step that was ticked for another diagnosis is not ticked any more", () => {
  state.ticked.value = [1, 2];
  state.step.value = null;
  assert.deepEqual(state.ticked.value, []);
});

test("when the server goes away, what is known stays and the reader is told", async () => {
  fails = true;
  await state.reload();
  assert.equal(state.runs.value.state, "ready");
  assert.equal(state.trouble.value, "TensorBoard does not answer. Is it still running?");
  fails = false;
  await state.reload();
  assert.equal(state.trouble.value, "");
});

test("an older list of runs does not replace a newer one", async () => {
  listed = runs.slice(0, 1);
  const older = state.reload();
  listed = runs;
  await Promise.all([older, state.reload()]);
  assert.equal(state.shownRuns.value.length, runs.length);
});

test("the texts that color the graph are in the link", () => {
  location.hash = "#quantization&p.quantization.paint=act_dtype";
  hashchange();
  assert.equal(state.paint.value, "act_dtype");
  state.paint.value = "block";
  assert.match(location.hash, /p\.quantization\.paint=block/);
  state.paint.value = "";
  assert.doesNotMatch(location.hash, /paint/);
});
