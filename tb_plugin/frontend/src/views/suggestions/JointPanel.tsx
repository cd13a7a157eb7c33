// One config for all ticked suggestions.

import { useState } from "preact/hooks";
import { ConfigBox } from "../../components/ConfigBox.tsx";
import { Effects, Tried, triedWith } from "../../components/Outcome.tsx";
import { configOf, toolFor } from "../../configs.ts";
import { noiseShare, timeEffect } from "../../effects.ts";
import { plural } from "../../format.ts";
import { readyValue } from "../../loadable.ts";
import { unionOps } from "../../recipes.ts";
import type { Suggestion } from "../../records.ts";
import * as state from "../../state.ts";
import { fallbackOf } from "../../trialtable.ts";
import { Ops } from "./Article.tsx";

export function JointPanel({ suggestions }: { suggestions: Suggestion[] }) {
  const { ticked } = state;
  const [open, setOpen] = useState(true);
  const chosen = suggestions.filter(({ rank = 0 }) => ticked.value.includes(rank));
  const tick = (ranks: number[]) => {
    ticked.value = ranks;
  };
  return (
    <section class="sg-joint" aria-label="Joint config">
      <header>
        <h2>Joint config</h2>
        {!chosen.length && <span class="muted">Tick “Combine” at the suggestions that should go into one config.</span>}
        <button
          type="button"
          disabled={chosen.length === suggestions.length}
          onClick={() => tick(suggestions.map(({ rank = 0 }) => rank))}
        >
          Combine all
        </button>
        <button type="button" disabled={!chosen.length} onClick={() => tick([])}>
          Clear
        </button>
        <button type="button" aria-expanded={open} disabled={!chosen.length} onClick={() => setOpen(!open)}>
          {open ? "Hide" : "Show"}
        </button>
      </header>
      {chosen.length > 0 && open && <Joint chosen={chosen} />}
    </section>
  );
}

function Together({ ops }: { ops: string[] }) {
  const added = readyValue(state.column("added_sqnr_db"));
  const times = state.has("profile") ? readyValue(state.record("profile")) : undefined;
  const effects = times ? timeEffect(times.rows, new Set(ops)) : [];
  if (added) {
    const rows = new Set(ops.flatMap((name) => state.rowOf.value.get(name) ?? []));
    const value = noiseShare(added, state.rowOf.value.size, rows);
    const how = "the share of these ops in the noise that all ops add; ops that several suggestions name count once";
    effects.unshift({
      kind: "recovers",
      label: "less added noise",
      value,
      unit: "share",
      basis: "estimated",
      how,
      what: "noise",
    });
  }
  return <Effects effects={effects} />;
}

function Joint({ chosen }: { chosen: Suggestion[] }) {
  const [withEarlier, setWithEarlier] = useState(false);
  const trials = readyValue(state.trials.value) ?? [];
  const earlier = fallbackOf(trials.find(({ run }) => run === state.run.value)?.trial);
  const picked = unionOps(chosen, state.rowOf.value);
  const ops = withEarlier ? unionOps([{ ops: picked }, { ops: earlier }], state.rowOf.value) : picked;
  const tried = triedWith(picked);
  const tool = toolFor();
  const config = configOf(ops, tool, true);
  return (
    <>
      <p role="status">
        {plural(chosen.length, "suggestion")}, {plural(ops.length, "op")}
      </p>
      <Ops ops={ops} />
      <Together ops={ops} />
      {tried.length ? (
        <Tried trials={tried} />
      ) : (
        <p class="muted">No run of this log has tried just these ops in fp32 yet.</p>
      )}
      {earlier.length > 0 && (
        <label class="check">
          <input
            type="checkbox"
            checked={withEarlier}
            onChange={(event) => setWithEarlier(event.currentTarget.checked)}
          />
          also {plural(earlier.length, "op")} that this run keeps in fp32 already
        </label>
      )}
      {config ? (
        <ConfigBox config={config} tool={tool} />
      ) : (
        <p class="muted">
          This run was logged by an older inc-tb, whose logs hold a config for each suggestion but none for several
          together. Log it again to combine them.
        </p>
      )}
    </>
  );
}
