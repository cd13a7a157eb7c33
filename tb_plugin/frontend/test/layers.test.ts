// Who may import whom: views never fetch and never import each other; components know no view; logic knows neither.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const SRC = fileURLToPath(new URL("../src", import.meta.url));
const FILES = readdirSync(SRC, { recursive: true, encoding: "utf-8" }).filter((file) => /\.tsx?$/.test(file));
const OWN: Record<string, string> = { "views/detail": "views/OpDetail.tsx", graph: "views/GraphView.tsx" };

function imports(file: string): string[] {
  const text = readFileSync(join(SRC, file), "utf-8");
  const found = [...text.matchAll(/(?:from|import\()\s*"(\.[^"]+)"/g)];
  return found.map((match) => normalize(join(dirname(file), match[1]!)));
}

/** "views/TrialsView.tsx" and "views/trials/…" belong to the view "trials". */
function viewOf(file: string): string | null {
  const folder = Object.keys(OWN).find((own) => file.startsWith(`${own}/`) || file === OWN[own]);
  if (folder) return folder;
  return (
    /^views\/([a-z]+)\//.exec(file)?.[1] ?? /^views\/([A-Z][a-z]+)View\.tsx$/.exec(file)?.[1]?.toLowerCase() ?? null
  );
}

test("only api.ts fetches", () => {
  const fetching = FILES.filter((file) => /\bfetch\(/.test(readFileSync(join(SRC, file), "utf-8")));
  assert.deepEqual(fetching, ["api.ts"]);
});

test("only state.ts uses api.ts, and the entry of a report, which says who answers", () => {
  assert.deepEqual(FILES.filter((file) => imports(file).includes("api.ts")).sort(), ["report.tsx", "state.ts"]);
});

test("a view imports nothing of another view", () => {
  const wrong = FILES.flatMap((file) => {
    const view = viewOf(file);
    const others = imports(file).filter((other) => viewOf(other) !== null && viewOf(other) !== view);
    return view === null ? [] : others.map((other) => `${file} imports ${other}`);
  });
  assert.deepEqual(wrong, []);
  assert.ok(FILES.filter((file) => viewOf(file) !== null).length > 20);
});

test("components and logic import no view", () => {
  const wrong = FILES.filter((file) => viewOf(file) === null && file !== "App.tsx" && file !== "views/index.ts");
  assert.deepEqual(
    wrong.filter((file) => imports(file).some((other) => viewOf(other) !== null)),
    [],
  );
});
