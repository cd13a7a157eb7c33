// Which columns the op table shows; the browser remembers it.

import { computed, signal } from "@preact/signals";

export const DEFAULT_COLUMNS = [
  "name",
  "type",
  "verdict",
  "sensitivity",
  "added_sqnr_db",
  "arrived_sqnr_db",
  "total_sqnr_db",
  "reason",
  "a_rmse_lsb",
  "a_clipped",
  "a_channel_ratio",
  "a_worst_channel_sqnr_db",
  "w_sqnr_db",
  "w_channel_ratio",
  "act_dtype",
  "weight_dtype",
];

/** Columns of the op table in their order; the first `pinned` of them stay in sight. */
export const columns = signal<string[]>(DEFAULT_COLUMNS);
export const pinned = signal(1);
export const hasDefaultColumns = computed(() => columns.value.join() === DEFAULT_COLUMNS.join());

const REMEMBERED = "inc-tb.quantization.columns";

export function remember(): void {
  try {
    const chosen = hasDefaultColumns.value ? undefined : columns.value;
    localStorage.setItem(REMEMBERED, JSON.stringify({ columns: chosen, pinned: pinned.value }));
  } catch {
    // Browsers may forbid storage in frames; then the columns last as long as the page.
  }
}

export function recall(): void {
  try {
    const found = JSON.parse(localStorage.getItem(REMEMBERED) ?? "{}");
    if (Array.isArray(found.columns) && found.columns.includes("name")) columns.value = found.columns;
    if (Number.isInteger(found.pinned)) pinned.value = found.pinned;
  } catch {
    // Whatever is stored there is not ours.
  }
}
