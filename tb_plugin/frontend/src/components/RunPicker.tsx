// The list of runs at the left.

import { useState } from "preact/hooks";
import { formatScore } from "../format.ts";
import { readyValue } from "../loadable.ts";
import * as state from "../state.ts";

const SEARCH_FROM = 8;

export function RunPicker() {
  const [search, setSearch] = useState("");
  const accuracy = new Map((readyValue(state.trials.value) ?? []).map(({ run, trial }) => [run, trial?.accuracy]));
  const all = state.shownRuns.value;
  const shown = all.filter(({ name }) => name.toLowerCase().includes(search.toLowerCase()));
  const onKey = (event: KeyboardEvent) => {
    const at = shown.findIndex(({ name }) => name === state.run.value);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    const chosen = next === undefined ? undefined : shown[next];
    if (!chosen) return;
    event.preventDefault();
    state.chooseRun(chosen.name);
    document.getElementById(idOf(chosen.name))?.scrollIntoView({ block: "nearest" });
  };
  return (
    <nav class="runs" aria-label="Choose a run">
      <h2>Runs</h2>
      {all.length >= SEARCH_FROM && (
        <input
          type="search"
          aria-label="Find runs"
          placeholder="find a run"
          value={search}
          onInput={(event) => setSearch(event.currentTarget.value)}
        />
      )}
      <div
        role="listbox"
        aria-label="Runs"
        tabIndex={0}
        aria-activedescendant={idOf(state.run.value)}
        onKeyDown={onKey}
      >
        {shown.map(({ name, kinds }) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the listbox has the keyboard
          <div
            key={name}
            id={idOf(name)}
            role="option"
            aria-selected={name === state.run.value}
            title={kinds.ops ? name : `${name}: no diagnosis`}
            class={kinds.ops ? "" : "muted"}
            onClick={() => state.chooseRun(name)}
          >
            <span class="run-name">{name}</span>
            <span class="run-accuracy">{accuracy.get(name) != null && formatScore(accuracy.get(name)!)}</span>
          </div>
        ))}
      </div>
    </nav>
  );
}

function idOf(run: string): string {
  return `run-${encodeURIComponent(run)}`;
}
