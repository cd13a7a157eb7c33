import { signal } from "@preact/signals";

/** The output that is looked at, of a model with several; empty for the first. */
export const chosenOutput = signal("");
/** The sample that is looked at, by its place in the data; -1 for the worst. */
export const chosenSample = signal(-1);
