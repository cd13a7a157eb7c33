// One change: in one line what to do, what it gives and what it costs; on demand why, on which ops, and the config.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { type Entry, isAboutTime, reasonOf } from "../../advice.ts";
import { ConfigBox, CopyConfig } from "../../components/ConfigBox.tsx";
import { Effects, Price, Tried, triedWith } from "../../components/Outcome.tsx";
import { shownAs } from "../../configs.ts";
import { ruleWords } from "../../evidence.ts";
import { plural, shortenMiddle } from "../../format.ts";
import type { Suggestion } from "../../records.ts";
import * as state from "../../state.ts";
import { Evidence } from "./Evidence.tsx";
import { useInSight } from "./insight.ts";

/** Entries that the reader has opened or closed, by run and rank; one alone is open unless it was closed. */
const toggled = signal<Record<string, boolean>>({});

export function Article({ entry, isAlone }: { entry: Entry; isAlone: boolean }) {
  const [element, inSight] = useInSight<HTMLElement>();
  const key = `${state.run.value} ${entry.rank}`;
  const isOpen = toggled.value[key] ?? isAlone;
  const { tool, action, config, effects } = shownAs(entry, inSight);
  const title = `${entry.rank}. ${action}`;
  const id = `suggestion-${entry.rank}`;
  const tried = triedWith(entry.ops, tool);
  return (
    <article class="sg-article" aria-labelledby={id} ref={element}>
      <header>
        <button
          type="button"
          class="sg-open"
          aria-expanded={isOpen}
          onClick={() => {
            toggled.value = { ...toggled.value, [key]: !isOpen };
          }}
        >
          <span aria-hidden="true">{isOpen ? "▾" : "▸"}</span> <h2 id={id}>{title}</h2>
        </button>
        <span class="tag" title={reasonOf(entry.suggestions[0]?.because ?? "")}>
          {[...new Set(entry.suggestions.map(({ rule }) => ruleWords(rule)))].join(", ")}
        </span>
        <span class="spacer" />
        {!isOpen && <CopyConfig config={config} />}
        <Tick entry={entry} title={title} />
        {!isOpen && <Price effects={effects} trials={tried} />}
      </header>
      {isOpen && (
        <div class="sg-body">
          {entry.suggestions.map((suggestion) => (
            <p key={suggestion.rank} class="sg-because">
              {sentence(suggestion.because)}
            </p>
          ))}
          <Ops ops={entry.ops} />
          <Tried trials={tried} />
          <Effects effects={effects} />
          {!isAboutTime(entry) && <Proofs suggestions={entry.suggestions} inSight={inSight} />}
          <ConfigBox config={config} tool={tool} />
        </div>
      )}
    </article>
  );
}

/** Of several suggestions those of the first: the others say the same of other ops. */
function Proofs({ suggestions, inSight }: { suggestions: Suggestion[]; inSight: boolean }) {
  return suggestions[0] ? <Evidence suggestion={suggestions[0]} inSight={inSight} /> : null;
}

function Tick({ entry, title }: { entry: Entry; title: string }) {
  const { ticked } = state;
  const ranks = entry.suggestions.map(({ rank = 0 }) => rank);
  return (
    <label class="check" title="Ticked suggestions make up one joint config">
      <input
        type="checkbox"
        aria-label={`Combine ${title}`}
        checked={ranks.every((rank) => ticked.value.includes(rank))}
        onChange={(event) => {
          const others = ticked.value.filter((other) => !ranks.includes(other));
          ticked.value = event.currentTarget.checked ? [...others, ...ranks].sort((a, b) => a - b) : others;
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
          {shortenMiddle(name, 56)}
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
