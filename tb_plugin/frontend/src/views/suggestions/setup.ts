// What all suggestions of this view share: what their evidence means, the tool, its template, and the names that go into
// it.

import { computed } from "@preact/signals";
import { type Loadable, map, ready, readyValue } from "../../loadable.ts";
import { type Check, checkNames, type Modules, type Tensors, toolsOf, writeConfig } from "../../recipes.ts";
import type { Recipe } from "../../records.ts";
import * as state from "../../state.ts";

interface Known {
  tensors: Tensors;
  modules: Modules;
}

const NOTHING: Known = { tensors: new Map(), modules: new Map() };

const found = computed(() => (state.has("suggestions") ? readyValue(state.record("suggestions")) : undefined));
/** undefined for logs that were written before evidence described itself. */
export const described = computed(() => found.value?.meta.evidence);
const templates = computed((): Recipe[] => found.value?.meta.recipes ?? []);

export const tools = computed(() => toolsOf(templates.value, found.value?.rows ?? []));
/** One choice for the whole page. */
export const tool = computed(() => {
  const known = tools.value.map((one) => one.tool);
  return known.includes(state.tool.value) ? state.tool.value : (known[0] ?? "");
});
/** undefined for logs of version 1, which hold texts only. */
export const recipe = computed(() => templates.value.find((one) => one.tool === tool.value));

/** The graph is only read for tools that want the names of tensors or modules. */
const known = computed((): Loadable<Known> => {
  const isNeeded = /\{(tensor|module)\}/.test(recipe.value?.item ?? "");
  if (!isNeeded || !state.has("graph")) return ready(NOTHING);
  return map(state.record("graph"), ({ rows }) => ({
    tensors: new Map(rows.map(({ name, tensor }) => [name, tensor ?? ""])),
    modules: new Map(rows.map(({ name, module }) => [name, module ?? ""])),
  }));
});

export interface Config {
  text: string;
  checks: Check[];
  note: string;
}

/** The config for a set of ops, or undefined where there is no template for it. Checks look at every op of the model. */
export function configOf(ops: string[], isChecked: boolean): Loadable<Config> | undefined {
  const template = recipe.value;
  if (!template) return undefined;
  const names = state.opNames.value;
  return map(known.value, ({ tensors, modules }) => ({
    text: writeConfig(template, ops, tensors, modules),
    checks: isChecked && names.size ? checkNames(template, ops, tensors, names, modules) : [],
    note: template.note ?? "",
  }));
}
