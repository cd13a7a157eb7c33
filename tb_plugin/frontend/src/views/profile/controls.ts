// How the table of times is shown; kept while the reader looks at other tabs.

import { signal } from "@preact/signals";
import type { Grouping } from "../../profile.ts";
import type { SortKey } from "../../state.ts";

export const grouping = signal<Grouping>("op");
export const filter = signal("");
export const SLOWEST_FIRST: SortKey[] = [{ column: "time", descending: true }];
export const sort = signal(SLOWEST_FIRST);
