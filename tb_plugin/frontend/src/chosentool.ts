// The tool whose configs the reader copies; the browser remembers it.

import { signal } from "@preact/signals";

/** Empty until one was chosen. */
export const tool = signal("");

const REMEMBERED = "inc-tb.quantization.tool";

export function rememberTool(): void {
  try {
    if (tool.value) localStorage.setItem(REMEMBERED, tool.value);
  } catch {
    // Browsers may forbid storage in frames; then the choice lasts as long as the page.
  }
}

export function recallTool(): void {
  try {
    tool.value = localStorage.getItem(REMEMBERED) ?? "";
  } catch {
    // As above.
  }
}
