import { signal } from "@preact/signals";

/** The output that is looked at, of a model with several; empty for the first. */
export const chosenOutput = signal("");
