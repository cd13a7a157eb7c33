// What all suggestions of this view share: what their evidence means, the tool, its template, and the names that go into
// it.

import { computed } from "@preact/signals";
import { type Loadable, map, ready, readyValue } from "../../loadable.ts";
import {
  type Check,
  checkNames,
  type Modules,
  type Statements,
  type Tensors,
  toolsOf,
  writeConfig,
} from "../../recipes.ts";
import type { Recipe, Suggestion } from "../../records.ts";
import * as state from "../../state.ts";

interface Known {
  tensors: Tensors;
  modules: Modules;
  statements: Statements;
}

const NOTHING: Known = { tensors: new Map(), modules: new Map(), statements: new Map() };

const found = computed(() => (state.has("suggestions") ? readyValue(state.record("suggestions")) : undefined));
/** undefined for logs that were written before evidence described itself. */
export const described = computed(() => found.value?.meta.evidence);
const templates = computed((): Recipe[] => found.value?.meta.recipes ?? []);

export const tools = computed(() => toolsOf(templates.value, found.value?.rows ?? []));
/** One choice for the whole page; until it is made, what a suggestion's text names as its cure, which it has first. */
export function toolFor(suggestion?: Suggestion): string {
  const there = tools.value.map((one) => one.tool);
  const first = Object.keys(suggestion?.recipes ?? {})[0] ?? "";
  return [state.tool.value, first].find((one) => there.includes(one)) ?? there[0] ?? "";
}

/** undefined for logs of version 1, which hold texts only. */
function recipeOf(tool: string): Recipe | undefined {
  return templates.value.find((one) => one.tool === tool);
}

/** The graph is only read for tools that want the names of tensors or modules. */
const known = computed(
  (): Loadable<Known> =>
    state.has("graph")
      ? map(state.record("graph"), ({ rows }) => ({
          tensors: new Map(rows.map(({ name, tensor }) => [name, tensor ?? ""])),
          modules: new Map(rows.map(({ name, module }) => [name, module ?? ""])),
          statements: new Map(rows.map(({ name, statement }) => [name, statement ?? ""])),
        }))
      : ready(NOTHING),
);

export interface Config {
  text: string;
  checks: Check[];
  note: string;
}

/** The config for a set of ops, or undefined where there is no template for it. Checks look at every op of the model. */
export function configOf(ops: string[], tool: string, isChecked: boolean): Loadable<Config> | undefined {
  const template = recipeOf(tool);
  if (!template) return undefined;
  const names = state.opNames.value;
  // A setting for the whole model names no op.
  const isAboutOps = isChecked && names.size > 0 && template.item !== "";
  const isNeeded = /\{(tensor|module)\}/.test(template.item);
  return map(isNeeded ? known.value : ready(NOTHING), ({ tensors, modules, statements }) => ({
    text: writeConfig(template, ops, tensors, modules, names, statements),
    checks: isAboutOps ? checkNames(template, ops, tensors, names, modules, statements) : [],
    note: template.note ?? "",
  }));
}
