// The list of views, and the one that newcomers copy; bundled as the page is, since node reads no JSX.

import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import type { ComponentType, VNode } from "preact";
import { container, zipped } from "./tables.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const SOURCES = readdirSync(join(ROOT, "src"), { recursive: true, encoding: "utf-8" });
const RUNS = [{ name: "a", kinds: { ops: { version: 2, steps: [0], wall_time: 1 } } }];

let answer: () => Response = () => new Response("the disk is full", { status: 503 });
Object.assign(globalThis, {
  window: { parent: { location: { hash: "" }, addEventListener: () => {}, postMessage: () => {} } },
  fetch: async (url: URL) => (url.pathname.endsWith("/runs") ? Response.json({ runs: RUNS }) : answer()),
});

const folder = mkdtempSync(join(tmpdir(), "views-"));
after(() => rmSync(folder, { recursive: true }));
const outfile = join(folder, "page.mjs");
await build({
  stdin: {
    contents: `export * as state from "./src/state.ts"; export * from "./src/views/index.ts";
      export { SkeletonView } from "./src/views/SkeletonView.tsx";`,
    resolveDir: ROOT,
  },
  outfile,
  bundle: true,
  format: "esm",
  jsx: "automatic",
  jsxImportSource: "preact",
  loader: { ".css": "text" },
});
const {
  state,
  VIEWS,
  SkeletonView,
}: typeof import("../src/views/index.ts") & {
  state: typeof import("../src/state.ts");
  SkeletonView: ComponentType;
} = await import(outfile);

/** What can be read, with all components filled in. */
function texts(node: unknown): string {
  if (Array.isArray(node)) return node.map(texts).join("");
  if (typeof node === "string" || typeof node === "number") return String(node);
  if (!node || typeof node !== "object") return "";
  const { type, props } = node as VNode<{ children?: unknown }>;
  return texts(typeof type === "function" ? (type as (given: object) => unknown)(props) : props.children);
}

const shown = () => texts((SkeletonView as () => unknown)());

async function settled(): Promise<void> {
  while (shown().includes("Loading")) await new Promise((resolve) => setTimeout(resolve, 5));
}

test("every view but the skeleton is in the list", () => {
  const list = readFileSync(join(ROOT, "src/views/index.ts"), "utf-8");
  const views = SOURCES.flatMap((file) => /^views\/(\w+View)\.tsx$/.exec(file)?.[1] ?? []);
  const unlisted = views.filter((name) => !list.includes(`"./${name}.tsx"`));
  assert.deepEqual(unlisted, ["SkeletonView"]);
  assert.equal(VIEWS.length, views.length - 1);
});

test("wherever the page goes to, there is a view", () => {
  const ids = VIEWS.map(({ id }) => id);
  assert.equal(new Set(ids).size, ids.length);
  const read = SOURCES.filter((file) => /\.tsx?$/.test(file)).map((file) =>
    readFileSync(join(ROOT, "src", file), "utf-8"),
  );
  const named = read.flatMap((text) => [...text.matchAll(/\bview\.value (?:=|===|!==) "(\w+)"/g)].map(([, id]) => id!));
  assert.ok(named.length > 3);
  assert.deepEqual(
    named.filter((id) => !ids.includes(id)),
    [],
  );
});

test("the skeleton shows that it is loading, what went wrong, and its list", async () => {
  await state.reload();
  assert.equal(shown(), " Loading the ops…");
  await settled();
  assert.equal(shown(), "This cannot be shown. the disk is fullTry again");
  const column = { name: "name", type: "text" };
  const parts = [{ run: "a", name: "name", step: 0, rows: 2, column, blob: 0 }];
  const data = new Uint8Array([12, 0, 0, 0, ...Buffer.from('["/b", "/a"]'), 1, 0, 0, 0, 0, 0, 0, 0]);
  answer = () => new Response(container({ parts }, [zipped(data)]));
  await state.reload();
  await settled();
  assert.equal(shown(), "/a/b");
});
