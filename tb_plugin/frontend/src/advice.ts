// Suggestions as a reader needs them: what to do first, what it gives, what it costs. Pure functions.

import { formatNumber, formatRoughTime, shortenMiddle } from "./format.ts";
import type { Effect, Recipe, Suggestion } from "./records.ts";

/** Rules that are about time and not about error. */
const ABOUT_TIME = new Set(["slower_in_int8"]);
/** Of the error at the output: less than this is nothing. */
const WORTH = 0.01;
const LONGEST_NAME = 34;
const MOST_NAMED = 2;

/** What one change cures: one suggestion, or all that the same setting takes away. */
export interface Entry {
  rank: number;
  suggestions: Suggestion[];
  /** Of all of them, each once. */
  ops: string[];
}

/** The tool whose config the text of a suggestion names as the cure. */
export function firstTool(suggestion?: Suggestion): string {
  return Object.keys(suggestion?.recipes ?? {})[0] ?? "";
}

/** In their order; what one setting for the whole model cures is one. */
export function entriesOf(rows: Suggestion[], isSetting: (tool: string) => boolean): Entry[] {
  const bySetting = new Map<string, Entry>();
  const found: Entry[] = [];
  for (const suggestion of rows) {
    const tool = firstTool(suggestion);
    const same = bySetting.get(tool);
    if (same) {
      same.suggestions.push(suggestion);
      same.ops = [...new Set([...same.ops, ...suggestion.ops])];
      continue;
    }
    const entry = { rank: found.length + 1, suggestions: [suggestion], ops: [...new Set(suggestion.ops)] };
    if (isSetting(tool)) bySetting.set(tool, entry);
    found.push(entry);
  }
  return found;
}

export function isAboutTime({ suggestions }: Entry): boolean {
  return suggestions.every(({ rule }) => ABOUT_TIME.has(rule));
}

/** Whether it was measured that following it alone leaves the error as it is. */
export function curesNothing({ suggestions }: Entry): boolean {
  const measured = suggestions.map(({ effects = [] }) => effects.find(({ what }) => what === "error"));
  return measured.every((effect) => effect?.basis === "measured" && effect.value < WORTH);
}

/** Of several suggestions nothing adds up, so that only what is known of one is told. */
export function effectsOf({ suggestions }: Entry): Effect[] {
  return suggestions.length === 1 ? (suggestions[0]?.effects ?? []) : [];
}

/** What to do, as a tool is told to do it. */
export function actionOf(ops: string[], recipe: Recipe | undefined, tool: string): string {
  if (recipe && !recipe.item) return `Use ${recipe.label.replace(/^.*?: /, "")}`;
  return /int16|16x8/.test(tool) ? `Give ${named(ops)} 16 bits` : `Keep ${named(ops)} in fp32`;
}

function named(ops: string[]): string {
  const some = ops.slice(0, ops.length > MOST_NAMED + 1 ? MOST_NAMED : ops.length).map((name) => tail(name));
  const more = ops.length - some.length;
  if (more) return `${some.join(", ")} and ${more} more ops`;
  return some.length > 1 ? `${some.slice(0, -1).join(", ")} and ${some.at(-1)}` : (some[0] ?? "nothing");
}

function tail(name: string): string {
  return shortenMiddle(name.replace(/^\//, ""), LONGEST_NAME);
}

export interface Told {
  text: string;
  basis: Effect["basis"];
  how: string;
}

/** Numbers of what it gives, and of what it takes, in words. */
export function told(effects: Effect[]): { gains: Told[]; costs: Told[] } {
  const found = effects.flatMap((effect): (Told & { kind: Effect["kind"] })[] => {
    const text = effectText(effect);
    return text ? [{ text, basis: effect.basis, how: effect.how, kind: effect.kind }] : [];
  });
  return {
    gains: found.filter(({ kind }) => kind === "recovers"),
    costs: found.filter(({ kind }) => kind === "costs"),
  };
}

/** "5 % more error", never "-5 % less". */
export function signless({ what, label, value }: Effect): { label: string; value: number } {
  const isMore = value < 0 && (what === "error" || what === "noise");
  return isMore ? { label: label.replace("less", "more"), value: -value } : { label, value };
}

function effectText({ kind, what, label, value, unit }: Effect): string {
  switch (what) {
    case "error":
      return value > 0 ? `removes ${shareText(value)} of the error` : "removes none of the error";
    case "noise":
      return `removes ${shareText(value)} of the added noise`;
    case "time":
      return `${kind === "recovers" ? "saves" : "costs"} ${formatRoughTime(value)} a run`;
    case "size":
      return `${formatNumber(value, unit)} larger`;
    case "ops":
      return "";
    default:
      return `${label}: ${formatNumber(value, unit)}`;
  }
}

/** Nothing is removed wholly: rounded down. */
function shareText(share: number): string {
  return `${Math.min(99.9, Math.floor(share * 1000) / 10)} %`;
}

/** The first thing that the reason says; the numbers behind it are further on. */
export function reasonOf(because: string): string {
  return because.split(/; |\. /)[0]!.replace(/\.$/, "");
}

/** Which rule speaks of each op, the first that does; what is about time speaks of no error. */
export function causes(rows: Suggestion[]): Map<string, string> {
  const found = new Map<string, string>();
  for (const { ops, rule } of rows) {
    if (ABOUT_TIME.has(rule)) continue;
    for (const op of ops) if (!found.has(op)) found.set(op, rule);
  }
  return found;
}
