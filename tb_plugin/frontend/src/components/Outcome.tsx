// What a change gives and takes: results of trials first, then what was measured, counted or estimated.

import { signless, type Told, told } from "../advice.ts";
import { recipeOf } from "../configs.ts";
import { formatScore, signed, withUnit } from "../format.ts";
import { readyValue } from "../loadable.ts";
import { type TriedTrial, triedBySetting, triedIn } from "../recipes.ts";
import type { Effect } from "../records.ts";
import * as state from "../state.ts";

/** Runs that have done just that: kept these ops in fp32, or made the setting that this tool's config makes. */
export function triedWith(ops: string[], tool = ""): TriedTrial[] {
  const runs = readyValue(state.trials.value) ?? [];
  const recipe = recipeOf(tool);
  return recipe && !recipe.item
    ? triedBySetting(runs, state.run.value, recipe.before + recipe.after)
    : triedIn(runs, state.run.value, ops);
}

export function Tried({ trials }: { trials: TriedTrial[] }) {
  return (
    <>
      {trials.map((one) => (
        <p key={one.run} class="cure-tried">
          <strong class="cure-badge measured">measured</strong> in <RunLink run={one.run} />:{" "}
          {one.lowerIsBetter ? "loss" : "accuracy"} <strong>{formatScore(one.accuracy)}</strong>
          {one.gain !== null && (
            <>
              {" "}
              (<span class={one.better ? "cure-better" : "cure-worse"}>{signed(one.gain, formatScore)}</span> against
              this run)
            </>
          )}
          {one.baseline !== null && <span class="muted">, fp32 has {formatScore(one.baseline)}</span>}
          {one.otherwise.length > 0 && <span class="muted">; the two also differ in {one.otherwise.join(", ")}</span>}
        </p>
      ))}
    </>
  );
}

export function RunLink({ run }: { run: string }) {
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
    <ul class="cure-effects">
      {effects.map((effect) => (
        <li key={`${effect.kind} ${effect.label}`}>
          <span class="cure-kind">{effect.kind === "recovers" ? "Recovers" : "Costs"}</span>
          <span>
            {signless(effect).label}: <strong>{withUnit(signless(effect).value, effect.unit)}</strong>{" "}
            <span class={`cure-badge ${effect.basis}`}>{effect.basis}</span> <span class="muted">{effect.how}</span>
          </span>
        </li>
      ))}
    </ul>
  );
}

/** The same in one line: "removes 99.9 % of the error · costs 24.5 µs a run". */
export function Price({ effects, trials }: { effects: Effect[]; trials: TriedTrial[] }) {
  const { gains, costs } = told(effects);
  const [tried] = trials;
  return (
    <span class="cure-price">
      {tried && (
        <span class="cure-gain" title={`measured in ${tried.run}`}>
          {tried.lowerIsBetter ? "loss" : "accuracy"} {formatScore(tried.accuracy)}
          {tried.gain !== null && ` (${signed(tried.gain, formatScore)})`} in <RunLink run={tried.run} />
        </span>
      )}
      <Words told={gains} kind="cure-gain" />
      <Words told={costs} kind="cure-cost" />
    </span>
  );
}

function Words({ told: words, kind }: { told: Told[]; kind: string }) {
  return (
    <>
      {words.map(({ text, basis, how }) => (
        <span key={text} class={kind} title={`${basis}: ${how}`}>
          {text} <span class={`cure-badge ${basis}`}>{basis}</span>
        </span>
      ))}
    </>
  );
}
