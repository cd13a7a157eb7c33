// Builds the page: node build.mjs [FOLDER] [--watch]; into tb_plugin/static unless told otherwise.
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import * as esbuild from "esbuild";

const here = import.meta.dirname;
const given = process.argv.slice(2).find((argument) => !argument.startsWith("--"));
const target = given ? resolve(given) : join(here, "..", "static");

async function build(folder) {
  const shared = {
    outdir: folder,
    bundle: true,
    format: "esm",
    target: "es2024",
    minify: true,
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none", // all of them are in THIRD_PARTY.txt
    loader: { ".css": "text" },
    absWorkingDir: here,
  };
  const { metafile } = await esbuild.build({
    ...shared,
    entryPoints: ["src/index.tsx"],
    splitting: true,
    chunkNames: "[name]-[hash]",
    metafile: true,
  });
  // A page that is opened from disk may import nothing: everything in one module, which tb_plugin/report.py puts inline.
  await esbuild.build({ ...shared, entryPoints: ["src/report.tsx"] });
  // The layout of graphs runs in a worker, which the page's security policy allows from a file only.
  cpSync(join(here, "node_modules/elkjs/lib/elk-worker.min.js"), join(folder, "elk-worker.js"));
  writeFileSync(join(folder, "THIRD_PARTY.txt"), licenses(Object.keys(metafile.inputs)));
}

function licenses(inputs) {
  const packages = inputs.map((input) => /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(input)?.[1]).filter(Boolean);
  const texts = [...new Set(packages)].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf-8"));
    const file = readdirSync(folder).find((found) => /^licen[cs]e/i.test(found));
    return `${name} ${version} (${license})\n\n${file ? readFileSync(join(folder, file), "utf-8").trim() : ""}`;
  });
  return `The page contains these packages:\n\n${texts.join(`\n\n${"-".repeat(80)}\n\n`)}\n`;
}

/** Whatever fails, the page that was there stays there. */
async function replace() {
  mkdirSync(dirname(target), { recursive: true });
  const folder = mkdtempSync(join(dirname(target), `.${basename(target)}-`));
  const old = `${folder}-old`;
  try {
    await build(folder);
    if (existsSync(target)) renameSync(target, old);
    renameSync(folder, target);
  } finally {
    for (const left of [folder, old]) rmSync(left, { recursive: true, force: true });
  }
}

await replace();
if (process.argv.includes("--watch")) {
  const { watch } = await import("node:fs");
  let waiting;
  watch(join(here, "src"), { recursive: true }, () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => replace().catch((error) => console.error(error.message)), 100);
  });
}
