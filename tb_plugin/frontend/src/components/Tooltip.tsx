// One tooltip for the whole page: on hover and on keyboard focus, closed by Escape.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

interface Shown {
  content: ComponentChildren;
  x: number;
  top: number;
  bottom: number;
}

/** Above what it explains where there is so much room: what is below are the rows that one is reading. */
const ROOM = 130;

/** Long enough that a pointer on its way elsewhere opens nothing. */
const DELAY_MS = 250;
const shown = signal<Shown | null>(null);
let waiting = 0;

/** Properties for an element that explains itself. */
export function explained(content: ComponentChildren) {
  const show = ({ currentTarget }: Event) => {
    clearTimeout(waiting);
    waiting = window.setTimeout(() => {
      const box = (currentTarget as Element).getBoundingClientRect();
      if (box.width)
        shown.value = { content, x: Math.min(box.left, window.innerWidth - 340), top: box.top, bottom: box.bottom };
    }, DELAY_MS);
  };
  return { onMouseEnter: show, onMouseLeave: hideTooltip, onFocusIn: show, onFocusOut: hideTooltip };
}

export function hideTooltip(): void {
  clearTimeout(waiting);
  shown.value = null;
}

export function Tooltip() {
  if (!shown.value) return null;
  const { content, x, top, bottom } = shown.value;
  return (
    <div
      class="tooltip"
      role="tooltip"
      style={{
        left: `${Math.max(4, x)}px`,
        ...(top > ROOM ? { bottom: `${window.innerHeight - top + 4}px` } : { top: `${bottom + 4}px` }),
      }}
    >
      {content}
    </div>
  );
}
