// The suggestions of the chosen run as entries, what their evidence means, and their configs for the tool that the reader
// has chosen once for the whole page.

import { computed } from "@preact/signals";
import { actionOf, causes, curesNothing, type Entry, effectsOf, entriesOf, firstTool, isAboutTime } from "./advice.ts";
import { type Loadable, map, ready, readyValue } from "./loadable.ts";
import {
  type Check,
  checkNames,
  type Modules,
  type Statements,
  type Tensors,
  type Tool,
  toolsOf,
  writeConfig,
} from "./recipes.ts";
import { type Effect, numberAt, type Recipe, type Suggestion } from "./records.ts";
import * as state from "./state.ts";

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
export function toolFor(suggestion?: Suggestion, offered: Tool[] = tools.value): string {
  const there = offered.map((one) => one.tool);
  return [state.tool.value, firstTool(suggestion)].find((one) => there.includes(one)) ?? there[0] ?? "";
}

/** Whether a tool's config is one setting for the whole model, which names no op. */
function isSetting(tool: string): boolean {
  const recipe = recipeOf(tool);
  return recipe !== undefined && !recipe.item;
}

export const entries = computed(() => entriesOf(found.value?.rows ?? [], isSetting));

/** The one to begin with: what cures something, before what only saves time. */
export const firstEntry = computed(() => {
  const helping = entries.value.filter((entry) => !curesNothing(entry));
  return helping.find((entry) => !isAboutTime(entry)) ?? helping[0];
});

/** Op -> the rule that speaks of it. */
export const causeOf = computed(() => causes(found.value?.rows ?? []));

export interface Shown {
  tool: string;
  /** Those that have a config for it: what is rounded otherwise gets no faster. */
  offered: Tool[];
  /** What to do, as this tool is told. */
  action: string;
  config: Loadable<Config>;
  /** What it gives and takes; of a setting nothing is known before it was tried. */
  effects: Effect[];
}

/** An entry as it is shown: for the chosen tool. */
export function shownAs(entry: Entry, isChecked: boolean): Shown {
  const [first] = entry.suggestions;
  const offered = isAboutTime(entry) ? tools.value.filter(({ rounds }) => !rounds) : tools.value;
  const tool = toolFor(first, offered);
  const stored = ready({ text: first?.recipes?.[tool] ?? "", checks: [], note: "" });
  return {
    tool,
    offered,
    action: actionOf(headsOf(entry.ops), recipeOf(tool), tool),
    config: configOf(entry.ops, tool, isChecked) ?? stored,
    effects: isSetting(tool) ? [] : effectsOf(entry),
  };
}

/** Without ops that were fused into others, which go with them. */
function headsOf(ops: string[]): string[] {
  const added = readyValue(state.column(state.ADDED));
  const rowOf = state.rowOf.value;
  const heads = ops.filter((name) => !rowOf.has(name) || !Number.isNaN(numberAt(added, rowOf.get(name)!)));
  return heads.length ? heads : ops;
}

/** undefined for logs of version 1, which hold texts only. */
export function recipeOf(tool: string): Recipe | undefined {
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
