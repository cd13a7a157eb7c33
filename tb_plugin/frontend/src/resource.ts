// What the server has answered, kept as long as it holds.

import { type Signal, signal } from "@preact/signals";
import type { RunAt } from "./batch.ts";
import { LOADING, type Loadable } from "./loadable.ts";

interface Kept {
  stamp: string;
  value: Signal<Loadable<unknown>>;
}

/** A column of 20,000 ops is 80 kB. */
const MOST_KEPT = 1500;
/** The pieces used last come last. */
const kept = new Map<string, Kept>();

/** A signal that fills itself. When its stamp changes it is read again, and has the old value until the new one is there. */
export function resource<T>(
  id: string,
  { stamp }: RunAt,
  start: (settle: (value: Loadable<T>) => void) => void,
): Signal<Loadable<T>> {
  const found = kept.get(id) ?? { stamp: "", value: signal<Loadable<unknown>>(LOADING) };
  kept.delete(id);
  kept.set(id, found);
  if (found.stamp !== stamp) {
    found.stamp = stamp;
    start((value) => {
      if (found.stamp === stamp) found.value.value = value;
    });
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value!);
  }
  return found.value as Signal<Loadable<T>>;
}

/** What failed is tried again when it is asked for next. */
export function forgetFailures(): void {
  for (const [id, { value }] of kept) if (value.peek().state === "error") kept.delete(id);
}
