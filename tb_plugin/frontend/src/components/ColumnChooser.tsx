// Which columns the op table has, in which order, and how many of them stay in sight. Remembered by state.ts.

import { useState } from "preact/hooks";
import { describe, labelOf } from "../opcolumns.tsx";
import type { ColumnSpec } from "../records.ts";
import { columns, DEFAULT_COLUMNS, pinned } from "../state.ts";
import { Popover } from "./Popover.tsx";

export function ColumnChooser({ all }: { all: ColumnSpec[] }) {
  const [search, setSearch] = useState("");
  const specs = new Map(all.map((spec) => [spec.name, spec]));
  const chosen = columns.value.filter((name) => specs.has(name));
  const others = all.filter(({ name }) => !columns.value.includes(name)).filter((spec) => matches(spec, search));
  return (
    <Popover label="Columns" name="Columns">
      <input
        type="search"
        aria-label="Find columns"
        placeholder="find a column"
        value={search}
        onInput={(event) => setSearch(event.currentTarget.value)}
      />
      <div class="chooser">
        <ol aria-label="Shown columns">
          {chosen.map((name, i) => (
            <Chosen key={name} spec={specs.get(name)!} place={i} shown={chosen} />
          ))}
        </ol>
        <ul aria-label="Hidden columns">
          {others.map((spec) => (
            <li key={spec.name} title={describe(spec)}>
              <label class="check">
                <input
                  type="checkbox"
                  checked={false}
                  onChange={() => {
                    columns.value = [...columns.value, spec.name];
                  }}
                />
                {labelOf(spec)} <span class="muted">{spec.unit}</span>
              </label>
            </li>
          ))}
        </ul>
      </div>
      <button
        type="button"
        onClick={() => {
          columns.value = DEFAULT_COLUMNS;
          pinned.value = 1;
        }}
      >
        Back to the usual columns
      </button>
    </Popover>
  );
}

/** `shown` leaves out columns that were chosen once and that this run does not have. */
function Chosen({ spec, place, shown }: { spec: ColumnSpec; place: number; shown: string[] }) {
  const move = (by: 1 | -1) => {
    const others = columns.value.filter((name) => name !== spec.name);
    others.splice(others.indexOf(shown[place + by]!) + (by > 0 ? 1 : 0), 0, spec.name);
    columns.value = others;
  };
  const isPinned = place < pinned.value;
  const label = labelOf(spec);
  return (
    <li title={describe(spec)}>
      <label class="check">
        <input
          type="checkbox"
          checked
          disabled={spec.name === "name"}
          onChange={() => {
            columns.value = columns.value.filter((name) => name !== spec.name);
            if (isPinned) pinned.value -= 1;
          }}
        />
        {label} <span class="muted">{spec.unit}</span>
      </label>
      <span class="spacer" />
      <button
        type="button"
        class="icon"
        aria-label={`Move ${label} up`}
        disabled={place === 0}
        onClick={() => move(-1)}
      >
        ↑
      </button>
      <button
        type="button"
        class="icon"
        aria-label={`Move ${label} down`}
        disabled={place === shown.length - 1}
        onClick={() => move(1)}
      >
        ↓
      </button>
      <button
        type="button"
        class="icon"
        aria-label={`Pin ${label} and the columns before it`}
        aria-pressed={isPinned}
        onClick={() => {
          pinned.value = isPinned ? place : place + 1;
        }}
      >
        pin
      </button>
    </li>
  );
}

function matches(spec: ColumnSpec, search: string): boolean {
  return `${spec.name} ${labelOf(spec)} ${spec.help ?? ""}`.toLowerCase().includes(search.toLowerCase());
}
