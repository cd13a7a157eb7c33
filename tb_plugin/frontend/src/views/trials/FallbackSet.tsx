// The ops that one trial keeps in fp32, on demand.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { CopyButton } from "../../components/CopyButton.tsx";
import { plural } from "../../format.ts";
import * as state from "../../state.ts";
import { table } from "../../trials.ts";
import { fallbackOf } from "../../trialtable.ts";

const shownOf = signal("");
const MOST = 300;

export function openFallback(run: string): void {
  shownOf.value = shownOf.value === run ? "" : run;
}

export function FallbackSet() {
  const trial = table.value.runs.find(({ run }) => run === shownOf.value)?.trial;
  const ops = fallbackOf(trial);
  const heading = useRef<HTMLHeadingElement>(null);
  const run = shownOf.value;
  useEffect(() => {
    if (run) heading.current?.focus();
  }, [run]);
  if (!run || !ops.length) return null;
  return (
    <section class="trials-fallback" aria-label={`Ops in fp32 in ${run}`}>
      <div class="trials-line">
        <h2 ref={heading} tabIndex={-1}>
          {run} keeps {plural(ops.length, "op")} in fp32
        </h2>
        <span class="spacer" />
        <CopyButton label="Copy names" text={() => ops.join("\n")} />
        <button type="button" onClick={() => openFallback(run)}>
          Close
        </button>
      </div>
      <ul>
        {ops.slice(0, MOST).map((name) => (
          <li key={name}>
            <button type="button" class="link" onClick={() => openIn(run, name)}>
              {name}
            </button>
          </li>
        ))}
        {ops.length > MOST && (
          <li class="muted">and {plural(ops.length - MOST, "more op", "more ops")}: copy the names to see them</li>
        )}
      </ul>
    </section>
  );
}

function openIn(run: string, name: string): void {
  state.chooseRun(run);
  state.openOp(name);
}
