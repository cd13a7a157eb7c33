// Builds the page: node build.mjs [FOLDER] [--watch]; into tb_plugin/static unless told otherwise.
import { cpSync, mkdirSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const target = process.argv.slice(2).find((argument) => !argument.startsWith("--")) ?? `${here}../static/`;
const options = {
  entryPoints: ["src/index.tsx"],
  outdir: target,
  bundle: true,
  splitting: true,
  format: "esm",
  target: "es2024",
  minify: true,
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  loader: { ".css": "text" },
  chunkNames: "[name]-[hash]",
  absWorkingDir: here,
};

rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });
// The layout of graphs runs in a worker, which the page's security policy allows from a file only.
cpSync(`${here}node_modules/elkjs/lib/elk-worker.min.js`, `${target}elk-worker.js`);
if (process.argv.includes("--watch")) await (await esbuild.context(options)).watch();
else await esbuild.build(options);
