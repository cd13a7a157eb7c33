// What all configs on this view share: the tool, its template, and the names that go into it.

import { computed } from "@preact/signals";
import { type Loadable, map, ready, readyValue } from "../../loadable.ts";
import { type Check, checkNames, type Tensors, toolsOf, writeConfig } from "../../recipes.ts";
import type { Recipe } from "../../records.ts";
import * as state from "../../state.ts";

const NONE: Tensors = new Map();

const found = computed(() => (state.has("suggestions") ? readyValue(state.record("suggestions")) : undefined));
const templates = computed((): Recipe[] => found.value?.meta.recipes ?? []);

export const tools = computed(() => toolsOf(templates.value, found.value?.rows ?? []));
/** One choice for the whole page. */
export const tool = computed(() => {
  const known = tools.value.map((one) => one.tool);
  return known.includes(state.tool.value) ? state.tool.value : (known[0] ?? "");
});
/** undefined for logs of version 1, which hold texts only. */
export const recipe = computed(() => templates.value.find((one) => one.tool === tool.value));

/** The graph is only read for tools that want the names of tensors. */
const tensors = computed((): Loadable<Tensors> => {
  if (!recipe.value?.item.includes("{tensor}") || !state.has("graph")) return ready(NONE);
  return map(state.record("graph"), ({ rows }) => new Map(rows.map(({ name, tensor }) => [name, tensor ?? ""])));
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
  return map(tensors.value, (known) => ({
    text: writeConfig(template, ops, known),
    checks: isChecked && state.opNames.value.size ? checkNames(template, ops, known, state.opNames.value) : [],
    note: template.note,
  }));
}
