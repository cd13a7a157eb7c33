// Sets of ops as the configuration of a tool, from the templates that are stored with the suggestions. Writes the same
// texts as inc_tb/frameworks/templates.py does; tests/data/recipe_cases.json holds both to it.

import { listed, plural } from "./format.ts";
import { escaped, exactPatterns } from "./patterns.ts";
import type { Recipe, Suggestion, Trial } from "./records.ts";

export type Tensors = ReadonlyMap<string, string>;
/** Modules of PyTorch that ops belong to, where the log knows them. */
export type Modules = ReadonlyMap<string, string>;
/** What the tool of the model is told of an op instead of a name. */
export type Statements = ReadonlyMap<string, string>;

const UNKNOWN: Modules = new Map();
const NO_MODEL: ReadonlySet<string> = new Set();

interface Words {
  name: string;
  pattern: string;
  tensor: string;
  module: string;
}

/** Tools that know patterns get those that match these ops and no others of the `model`. */
export function writeConfig(
  recipe: Recipe,
  ops: Iterable<string>,
  tensors: Tensors,
  modules = UNKNOWN,
  model: ReadonlySet<string> = NO_MODEL,
  statements: Statements = UNKNOWN,
): string {
  const byPattern = takesPatterns(recipe);
  const items = new Set(byPattern ? exactPatterns(ops, model).map((pattern) => filled(recipe.item, { pattern })) : []);
  let unnamed = "";
  for (const name of byPattern ? [] : ops) {
    const words = wordsOf(name, tensors, modules);
    const statement = statements.get(name);
    const own = recipe.of_statement;
    if (own && statement) for (const line of statement.split("\n")) items.add(own.replace("{statement}", () => line));
    else if (words.module || !recipe.item.includes("{module}")) items.add(filled(recipe.item, words));
    // The whole model is the module "", and would be kept in fp32.
    else unnamed += filled(recipe.unnamed ?? "", words);
  }
  if (!items.size) return recipe.before.replace(/\n+$/, "") + recipe.after.replace(/^[,\n]+/, "") + unnamed;
  return recipe.before + [...items].join(recipe.between) + recipe.after + unnamed;
}

export function wordsOf(name: string, tensors: Tensors, modules = UNKNOWN): Words {
  const path = name.replace(/^\/+|\/+$/g, "").split("/");
  // What torch's export calls /Relu is a function at the top, in no module but the whole model.
  const around = path.length > 1 || name.startsWith("/") ? path.slice(0, -1) : path;
  const module = modules.get(name) || around.join(".");
  return { name, pattern: escaped(name), tensor: tensors.get(name) || name, module };
}

function takesPatterns({ item }: Recipe): boolean {
  const words = item.match(/\{(name|pattern|tensor|module)\}/g) ?? [];
  return words.length > 0 && words.every((word) => word === "{pattern}");
}

/** In one go: a name may itself hold the text of a placeholder. */
function filled(item: string, words: Partial<Words>): string {
  return item.replace(/\{(name|pattern|tensor|module)\}/g, (_, word: keyof Words) => JSON.stringify(words[word] ?? ""));
}

export interface Check {
  ok: boolean;
  text: string;
}

/** Whether what the text names is really in the model. */
export function checkNames(
  recipe: Recipe,
  ops: string[],
  tensors: Tensors,
  model: ReadonlySet<string>,
  modules = UNKNOWN,
  statements: Statements = UNKNOWN,
): Check[] {
  const missing = ops.filter((name) => !model.has(name));
  const checks = [counted(ops.length, missing, "name", "in the model")];
  const nameless = recipe.item.includes("{tensor}") ? [] : ops.filter((name) => name && tensors.get(name) === name);
  if (nameless.length) {
    checks.push({
      ok: false,
      text: `without a name of their own in the file, called after what they write: ${listed(nameless)}`,
    });
  }
  if (recipe.item.includes("{pattern}")) checks.push(checkPatterns(ops, model));
  if (recipe.item.includes("{tensor}")) {
    const unknown = ops.filter((name) => !tensors.get(name));
    checks.push(counted(ops.length, unknown, "tensor", "known from the graph"));
  }
  if (recipe.item.includes("{module}")) {
    const others = recipe.of_statement ? ops.filter((name) => !statements.get(name)) : ops;
    if (others.length) checks.push(checkModules(others, model, modules));
  }
  return checks;
}

function counted(total: number, wrong: string[], what: string, is: string): Check {
  const right = total - wrong.length;
  const verb = total === 1 ? "is" : "are";
  const text = `${right} of ${plural(total, what)} ${verb} ${is}`;
  return wrong.length ? { ok: false, text: `${text}; not ${listed(wrong)}` } : { ok: true, text };
}

/** All patterns as one expression: a model may have 20,000 names. */
function checkPatterns(ops: string[], model: ReadonlySet<string>): Check {
  const chosen = new Set(ops);
  const patterns = exactPatterns(chosen, model);
  const matched = new RegExp(`^(?:${patterns.join("|")})$`);
  const others = [...model].filter((name) => !chosen.has(name) && matched.test(name));
  if (others.length) return { ok: false, text: `the patterns also match ${listed(others)}` };
  const missed = ops.filter((name) => !matched.test(name));
  if (missed.length) return { ok: false, text: `no pattern matches ${listed(missed)}` };
  if (patterns.length === chosen.size) {
    return counted(ops.length, missed, "pattern", "exact: they match these ops and no others");
  }
  const match = patterns.length === 1 ? "1 pattern matches" : `${patterns.length} patterns match`;
  return { ok: true, text: `${match} these ${chosen.size} ops and no others` };
}

/** Modules are guessed from names unless the log knows them, and a module brings everything inside it along. */
function checkModules(ops: string[], model: ReadonlySet<string>, known: Modules): Check {
  const moduleOf = (name: string) => wordsOf(name, UNKNOWN, known).module;
  const moduleless = ops.filter((name) => !moduleOf(name));
  const modules = new Set(ops.map(moduleOf).filter((module) => module));
  const chosen = new Set(ops);
  const more = [...model].filter((name) => !chosen.has(name) && isInside(moduleOf(name), modules));
  const isKnown = ops.some((name) => known.get(name));
  if (!isKnown && !ops.some((name) => name.includes("/"))) {
    return { ok: false, text: "these names do not look like those of a torch export, so the modules are guesses" };
  }
  const from = isKnown ? "known from the model" : "derived from the op names";
  const derived = `${plural(modules.size, "module name was", "module names were")} ${from}`;
  const count = moduleless.length ? `${derived}; in no module, so left out: ${listed(moduleless)}` : derived;
  if (!more.length) return { ok: modules.size > 0, text: count };
  const ofMore = plural(more.length, "op that was", "ops that were");
  return { ok: false, text: `${count}; inside are also ${ofMore} not chosen: ${listed(more)}` };
}

function isInside(module: string, modules: ReadonlySet<string>): boolean {
  for (let at = module; at; at = at.slice(0, Math.max(0, at.lastIndexOf(".")))) if (modules.has(at)) return true;
  return false;
}

/** The ops of several suggestions, each once, in the order of the graph; those it does not know come last. */
export function unionOps(suggestions: Pick<Suggestion, "ops">[], rowOf: ReadonlyMap<string, number>): string[] {
  const place = (name: string) => rowOf.get(name) ?? Number.MAX_SAFE_INTEGER;
  return [...new Set(suggestions.flatMap(({ ops }) => ops))].sort((a, b) => place(a) - place(b));
}

/** Tools to choose from; logs of version 1 hold ready texts instead of templates. */
export function toolsOf(recipes: Recipe[], suggestions: Suggestion[]): Tool[] {
  if (recipes.length)
    return recipes.map(({ tool, label, rounds = false, elsewhere = false }) => ({ tool, label, rounds, elsewhere }));
  const stored = new Set(suggestions.flatMap(({ recipes: texts = {} }) => Object.keys(texts)));
  return [...stored].map((tool) => ({ tool, label: tool, rounds: false, elsewhere: false }));
}

export interface Tool {
  tool: string;
  label: string;
  /** Whether it keeps no op in fp32 but has it rounded otherwise. */
  rounds: boolean;
  /** Whether it takes the model in another framework only. */
  elsewhere: boolean;
}

export interface TriedTrial {
  run: string;
  accuracy: number;
  /** Against the run that is shown; null where that has no result. */
  gain: number | null;
  better: boolean;
  baseline: number | null;
  lowerIsBetter: boolean;
  /** Other settings in which the two trials differ. */
  otherwise: string[];
}

interface Run {
  run: string;
  trial: Trial | null;
}

/** Other runs that had just these ops in fp32, on top of what the shown run has there already; the best first. */
export function triedIn(runs: Run[], shown: string, ops: string[]): TriedTrial[] {
  const here = runs.find(({ run }) => run === shown)?.trial ?? null;
  const wanted = [new Set(ops), new Set([...ops, ...(here?.fallback ?? [])])];
  const found = runs.flatMap(({ run, trial }): TriedTrial[] => {
    if (run === shown || !ops.length || typeof trial?.accuracy !== "number") return [];
    const fallback = new Set(trial.fallback ?? []);
    if (!wanted.some((set) => isSame(set, fallback))) return [];
    return [triedTrial(run, trial, here)];
  });
  return found.sort(bestFirst);
}

/** Other runs that differ from the shown one in settings only, all of which this config makes; the best first. */
export function triedBySetting(runs: Run[], shown: string, config: string): TriedTrial[] {
  const here = runs.find(({ run }) => run === shown)?.trial;
  if (!here) return [];
  const found = runs.flatMap(({ run, trial }): TriedTrial[] => {
    if (run === shown || typeof trial?.accuracy !== "number") return [];
    if (!isSame(new Set(trial.fallback), new Set(here.fallback))) return [];
    const changed = differing(here.config ?? {}, trial.config ?? {});
    const isTold = (key: string) => config.includes(`${key}=${pythonText(trial.config?.[key])}`);
    return changed.length && changed.every(isTold) ? [{ ...triedTrial(run, trial, here), otherwise: [] }] : [];
  });
  return found.sort(bestFirst);
}

function pythonText(value: unknown): string {
  return typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value);
}

function triedTrial(run: string, trial: Trial, here: Trial | null): TriedTrial {
  const accuracy = trial.accuracy ?? Number.NaN;
  const gain = typeof here?.accuracy === "number" ? accuracy - here.accuracy : null;
  const lowerIsBetter = trial.lower_is_better ?? false;
  return {
    run,
    accuracy,
    gain,
    better: gain !== null && (lowerIsBetter ? gain < 0 : gain > 0),
    baseline: trial.baseline ?? null,
    lowerIsBetter,
    otherwise: here ? differing(here.config ?? {}, trial.config ?? {}) : [],
  };
}

function bestFirst(a: TriedTrial, b: TriedTrial): number {
  return a.lowerIsBetter ? a.accuracy - b.accuracy : b.accuracy - a.accuracy;
}

function isSame(a: ReadonlySet<string>, b: ReadonlySet<string>): boolean {
  return a.size === b.size && [...a].every((name) => b.has(name));
}

function differing(a: Record<string, unknown>, b: Record<string, unknown>): string[] {
  const keys = new Set([...Object.keys(a), ...Object.keys(b)]);
  return [...keys].filter((key) => JSON.stringify(a[key]) !== JSON.stringify(b[key]));
}
