// One of the parts of the overview, with a way to the view that tells more.

import type { ComponentChildren } from "preact";
import * as state from "../../state.ts";

interface Props {
  name: string;
  /** What is there to see, and in which view. */
  link?: string;
  view?: string;
  /** Another way on. */
  beside?: ComponentChildren;
  children: ComponentChildren;
}

export function Card({ name, link, view, beside, children }: Props) {
  return (
    <section class="ov-card" aria-label={name}>
      <header>
        <h3>{name}</h3>
        <span class="spacer" />
        {beside}
        {link && view && (
          <button
            type="button"
            class="link"
            onClick={() => {
              state.view.value = view;
            }}
          >
            {link} →
          </button>
        )}
      </header>
      {children}
    </section>
  );
}
