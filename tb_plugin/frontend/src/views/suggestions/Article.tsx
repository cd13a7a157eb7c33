// One suggestion: why, which ops, what it brings, what it rests on, and the config that follows it.

import { useState } from "preact/hooks";
import { ruleWords } from "../../evidence.ts";
import { plural, shorten } from "../../format.ts";
import { ready } from "../../loadable.ts";
import type { Suggestion } from "../../records.ts";
import * as state from "../../state.ts";
import { ConfigBox } from "./ConfigBox.tsx";
import { Evidence } from "./Evidence.tsx";
import { useInSight } from "./insight.ts";
import { Effects, Tried, triedWith } from "./Outcome.tsx";
import { configOf, toolFor } from "./setup.ts";

export function Article({ suggestion }: { suggestion: Suggestion }) {
  const { rank = 0, rule, because, recipes = {} } = suggestion;
  const ops = [...new Set(suggestion.ops)];
  const [element, inSight] = useInSight<HTMLElement>();
  const title = `${rank}. ${ruleWords(rule)}`;
  const id = `suggestion-${rank}`;
  const tool = toolFor(suggestion);
  const config = configOf(ops, tool, inSight) ?? ready({ text: recipes[tool] ?? "", checks: [], note: "" });
  return (
    <article class="sg-article" aria-labelledby={id} ref={element}>
      <header>
        <h2 id={id}>{title}</h2>
        <Tick rank={rank} title={title} />
      </header>
      <p class="sg-because">{sentence(because)}</p>
      <Ops ops={ops} />
      <Tried trials={triedWith(ops)} />
      <Effects effects={suggestion.effects ?? []} />
      <Evidence suggestion={suggestion} inSight={inSight} />
      <ConfigBox config={config} tool={tool} />
    </article>
  );
}

function Tick({ rank, title }: { rank: number; title: string }) {
  const { ticked } = state;
  return (
    <label class="check" title="Ticked suggestions make up one joint config">
      <input
        type="checkbox"
        aria-label={`Combine ${title}`}
        checked={ticked.value.includes(rank)}
        onChange={(event) => {
          const others = ticked.value.filter((other) => other !== rank);
          ticked.value = event.currentTarget.checked ? [...others, rank].sort((a, b) => a - b) : others;
        }}
      />
      Combine
    </label>
  );
}

const FEW = 6;

export function Ops({ ops }: { ops: string[] }) {
  const [all, setAll] = useState(false);
  const shown = all || ops.length <= FEW + 2 ? ops : ops.slice(0, FEW);
  return (
    <p class="sg-ops">
      <span class="muted">{plural(ops.length, "op")}:</span>
      {shown.map((name) => (
        <button key={name} type="button" class="link" title={name} onClick={() => state.openOp(name)}>
          {shorten(name, 56)}
        </button>
      ))}
      {ops.length > FEW + 2 && (
        <button type="button" class="sg-more" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "show fewer" : `show all ${ops.length}`}
        </button>
      )}
    </p>
  );
}

function sentence(text: string): string {
  const first = text.slice(0, 1);
  // Names of ops begin small or with a slash for a reason; only plain words get a capital.
  return /^[a-z]+ /.test(text) ? first.toUpperCase() + text.slice(1) : text;
}
