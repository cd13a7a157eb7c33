// What to do about this op: the suggestion that speaks of it, what it gives, and its config.

import { CopyConfig } from "../../components/ConfigBox.tsx";
import { Price, triedWith } from "../../components/Outcome.tsx";
import { entries, shownAs } from "../../configs.ts";
import * as state from "../../state.ts";

export function ToDo({ name }: { name: string }) {
  const entry = entries.value.find(({ ops }) => ops.includes(name));
  if (!entry) return null;
  const { tool, action, config, effects } = shownAs(entry, false);
  return (
    <section class="d-section" aria-label="What to do">
      <h3>What to do</h3>
      <p class="d-action">{action}</p>
      <Price effects={effects} trials={triedWith(entry.ops, tool)} />
      <p class="d-buttons">
        <CopyConfig config={config} />
        {state.view.value !== "suggestions" && (
          <button
            type="button"
            class="link"
            onClick={() => {
              state.view.value = "suggestions";
            }}
          >
            suggestion {entry.rank} →
          </button>
        )}
      </p>
    </section>
  );
}
