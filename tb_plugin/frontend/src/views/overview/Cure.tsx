// What to do first: what it gives and costs, and the config for the chosen tool.

import { isAboutTime } from "../../advice.ts";
import { probeCommand } from "../../commands.ts";
import { ConfigBox, ToolPicker } from "../../components/ConfigBox.tsx";
import { CopyButton } from "../../components/CopyButton.tsx";
import { Price, triedWith } from "../../components/Outcome.tsx";
import { entries, firstEntry, shownAs } from "../../configs.ts";
import { plural } from "../../format.ts";
import { readyValue } from "../../loadable.ts";
import type { Effect } from "../../records.ts";
import * as state from "../../state.ts";
import { Card } from "./Card.tsx";

export function Cure() {
  const entry = firstEntry.value;
  if (!entry) return <NothingToDo />;
  const { tool, offered, action, config, effects } = shownAs(entry, true);
  const tried = triedWith(entry.ops, tool);
  const more = entries.value.length - 1;
  return (
    <Card
      name={isAboutTime(entry) ? "Faster" : "Do this first"}
      link={more > 0 ? `${plural(more, "more suggestion")} and the reasons` : "the reasons"}
      view="suggestions"
    >
      <p class="ov-action">{action}</p>
      <Price effects={effects} trials={tried} />
      {!tried.length && !effects.some(isProof) && <Measure />}
      <ToolPicker tool={tool} offered={offered} />
      <ConfigBox config={config} tool={tool} />
    </Card>
  );
}

function isProof({ what, basis }: Effect): boolean {
  return basis === "measured" && (what === "error" || what === "time");
}

/** Nothing is promised that was not measured. */
function Measure() {
  const meta = readyValue(state.header.value)?.meta;
  return (
    <p class="ov-measure">
      <span class="muted">What it gives at the output was not measured.</span>{" "}
      <CopyButton label="Copy the command that measures it" text={() => probeCommand(state.run.value, meta)} />
    </p>
  );
}

function NothingToDo() {
  const known = state.has("suggestions") ? state.record("suggestions") : null;
  if (known?.state === "loading") return <Card name="Do this first">…</Card>;
  return (
    <Card name="Do this first" link="all suggestions" view="suggestions">
      <p>
        {state.isMeasured.value
          ? "Nothing: no op adds enough error to be worth a change, and none got slower by much."
          : "Nothing can be told: log a diagnosis that compares values."}
      </p>
    </Card>
  );
}
