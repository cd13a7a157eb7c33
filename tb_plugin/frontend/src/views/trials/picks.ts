// Which runs are picked to be compared.

import { signal } from "@preact/signals";
import { picked } from "../../compare.ts";
import * as state from "../../state.ts";

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
