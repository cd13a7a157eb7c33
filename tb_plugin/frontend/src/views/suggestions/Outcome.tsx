// What a suggestion gives and takes: results of trials first, then what was counted or estimated.

import { formatScore, signed, withUnit } from "../../format.ts";
import { readyValue } from "../../loadable.ts";
import { type TriedTrial, triedIn } from "../../recipes.ts";
import type { Effect } from "../../records.ts";
import * as state from "../../state.ts";

export function triedWith(ops: string[]): TriedTrial[] {
  return triedIn(readyValue(state.trials.value) ?? [], state.run.value, ops);
}

export function Tried({ trials }: { trials: TriedTrial[] }) {
  return (
    <>
      {trials.map((one) => (
        <p key={one.run} class="sg-tried">
          <strong class="sg-badge measured">measured</strong> in <RunLink run={one.run} />:{" "}
          {one.lowerIsBetter ? "loss" : "accuracy"} <strong>{formatScore(one.accuracy)}</strong>
          {one.gain !== null && (
            <>
              {" "}
              (<span class={one.better ? "sg-better" : "sg-worse"}>{signed(one.gain, formatScore)}</span> against this
              run)
            </>
          )}
          {one.baseline !== null && <span class="muted">, fp32 has {formatScore(one.baseline)}</span>}
          {one.otherwise.length > 0 && <span class="muted">; the two also differ in {one.otherwise.join(", ")}</span>}
        </p>
      ))}
    </>
  );
}

function RunLink({ run }: { run: string }) {
  return (
    <a
      href={state.link({ run })}
      target="_parent"
      onClick={(event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        state.chooseRun(run);
      }}
    >
      {run}
    </a>
  );
}

export function Effects({ effects }: { effects: Effect[] }) {
  if (!effects.length) return null;
  return (
    <ul class="sg-effects">
      {effects.map((effect) => (
        <li key={`${effect.kind} ${effect.label}`}>
          <span class="sg-kind">{effect.kind === "recovers" ? "Recovers" : "Costs"}</span>
          <span>
            {effect.label}: <strong>{withUnit(effect.value, effect.unit)}</strong>{" "}
            <span class={`sg-badge ${effect.basis}`}>{effect.basis}</span> <span class="muted">{effect.how}</span>
          </span>
        </li>
      ))}
    </ul>
  );
}
