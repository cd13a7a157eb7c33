// Above the op table: what passes, what the colors mean, which columns, and the table as text.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ColumnChooser } from "../../components/ColumnChooser.tsx";
import { CopyButton } from "../../components/CopyButton.tsx";
import { Legend } from "../../components/Legend.tsx";
import { Multiselect } from "../../components/Multiselect.tsx";
import { plural } from "../../format.ts";
import { matcher } from "../../order.ts";
import type { TableHeader } from "../../records.ts";
import * as state from "../../state.ts";
import { chosenCsv, downloadAll, loaded, order, scales, selected, shown } from "./table.ts";

export function Toolbar({ header }: { header: TableHeader }) {
  const explainedBy = [...state.sort.value.map(({ column }) => column), ...shown.value];
  const byColumn = loaded.value.get(explainedBy.find((name) => scales.value.get(name)) ?? "");
  const problem = useSignal("");
  const wrong = matcher(state.filter.value);
  return (
    <div class="ops-toolbar">
      <div class="toolbar one-row">
        <FilterBox isWrong={typeof wrong === "string"} />
        <Multiselect
          label="Type"
          options={textsOf("type")}
          chosen={state.filter.value.types}
          onChange={(types) => {
            state.filter.value = { ...state.filter.value, types };
          }}
        />
        <Multiselect
          label="Verdict"
          options={textsOf("verdict")}
          chosen={state.filter.value.verdicts}
          onChange={(verdicts) => {
            state.filter.value = { ...state.filter.value, verdicts };
          }}
        />
        <span class="muted shrinks" role="status">
          {order.value.length === header.rows
            ? plural(header.rows, "op")
            : `${order.value.length.toLocaleString("en")} of ${plural(header.rows, "op")}`}
          {selected.value.size > 0 && `, ${selected.value.size} selected`}
        </span>
        <span class="spacer" />
        {byColumn?.kind === "number" && (
          <Legend spec={byColumn.spec} scale={scales.value.get(byColumn.spec.name) ?? null} />
        )}
        <ColumnChooser all={header.columns} />
        <CopyButton label={selected.value.size ? "Copy selection" : "Copy"} text={chosenCsv} />
        <button type="button" aria-label="Download CSV" onClick={() => downloadAll(header, problem)}>
          <span class="if-wide">Download </span>CSV
        </button>
      </div>
      {[typeof wrong === "string" ? wrong : "", problem.value].filter(Boolean).map((text) => (
        <p key={text} class="wrong" role="alert">
          {text}
        </p>
      ))}
    </div>
  );
}

function FilterBox({ isWrong }: { isWrong: boolean }) {
  const box = useRef<HTMLInputElement>(null);
  const { filter } = state;
  useEffect(() => {
    const jump = (event: KeyboardEvent) => {
      if (event.key !== "/" || (event.target as Element).matches("input, textarea, select")) return;
      event.preventDefault();
      box.current?.focus();
    };
    document.addEventListener("keydown", jump);
    return () => document.removeEventListener("keydown", jump);
  }, []);
  return (
    <>
      <input
        ref={box}
        type="search"
        aria-label="Filter ops"
        placeholder={filter.value.regex ? "regular expression" : "words of the name or type"}
        aria-invalid={isWrong}
        value={filter.value.text}
        onInput={(event) => {
          filter.value = { ...filter.value, text: event.currentTarget.value };
        }}
      />
      <label class="check" title="Read the filter as a regular expression">
        <input
          type="checkbox"
          checked={filter.value.regex}
          onChange={(event) => {
            filter.value = { ...filter.value, regex: event.currentTarget.checked };
          }}
        />
        regex
      </label>
    </>
  );
}

function textsOf(name: string): string[] {
  const column = loaded.value.get(name);
  return column?.kind === "text" ? column.texts.filter(Boolean) : [];
}
