// What the parts of this view share: the table of trials, and which runs are picked from it.

import { computed, signal } from "@preact/signals";
import { picked } from "../../compare.ts";
import { readyValue } from "../../loadable.ts";
import * as state from "../../state.ts";
import { type TrialTable, trialTable } from "../../trialtable.ts";

export const table = computed((): TrialTable => trialTable(readyValue(state.trials.value) ?? []));

/** Why the last pick was refused. */
export const refusal = signal("");

export function pick(wanted: ReadonlySet<string>): void {
  const next = picked(state.compared.value, wanted, state.MOST_PICKED);
  refusal.value = next ? "" : `At most ${state.MOST_PICKED} runs can be ticked. Untick one of them to add another.`;
  if (next) state.compared.value = next;
}

export function togglePick(run: string): void {
  const wanted = new Set(state.compared.value);
  if (!wanted.delete(run)) wanted.add(run);
  pick(wanted);
}

export function makeBase(run: string): void {
  state.compared.value = [run, ...state.compared.value.filter((other) => other !== run)];
}
