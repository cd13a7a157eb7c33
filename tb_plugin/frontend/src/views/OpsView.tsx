// The table of ops: sort, filter, choose columns, copy; the line of the error along the graph above it.

import { computed, type Signal, signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ColumnChooser } from "../components/ColumnChooser.tsx";
import { CopyButton } from "../components/CopyButton.tsx";
import { ErrorLine } from "../components/ErrorLine.tsx";
import { Grid } from "../components/Grid.tsx";
import { Legend } from "../components/Legend.tsx";
import { Multiselect } from "../components/Multiselect.tsx";
import { Loaded, Loading, Problem } from "../components/Status.tsx";
import { copy, download, toCsv } from "../csv.ts";
import { plural } from "../format.ts";
import { readyValue } from "../loadable.ts";
import { gridColumn, opCell } from "../opcolumns.tsx";
import { filtered, matcher, nextSort, sorted } from "../order.ts";
import { type Column, type TableHeader, textAt } from "../records.ts";
import { type Scale, scaleOf } from "../scale.ts";
import * as state from "../state.ts";

/** Columns that are needed whether they are shown or not. */
const PLACE = ["added_sqnr_db", "arrived_sqnr_db", "total_sqnr_db"];
const ALWAYS = ["name", "module", "type", "verdict", "reason", "index", ...PLACE];

const known = computed((): TableHeader | undefined => readyValue(state.header.value));
const present = computed(() => new Set(known.value?.columns.map(({ name }) => name)));
const shown = computed(() => {
  const here = state.columns.value.filter((name) => present.value.has(name));
  // Unless the user has chosen it, a column that is empty in a run that was not probed would only take room.
  return state.isProbed.value || !state.hasDefaultColumns.value ? here : here.filter((name) => name !== "sensitivity");
});
const needed = computed(() => {
  const sortedBy = state.sort.value.map(({ column }) => column);
  return [...new Set([...ALWAYS, ...shown.value, ...sortedBy])].filter((name) => present.value.has(name));
});
const loaded = computed((): Map<string, Column> => {
  const found = new Map<string, Column>();
  for (const [name, column] of state.columnsOf(needed.value)) {
    if (column.state === "ready") found.set(name, column.value);
  }
  return found;
});
/** Columns that could not be read, with the reason. */
const broken = computed((): Map<string, string> => {
  const found = [...state.columnsOf(needed.value)];
  return new Map(found.flatMap(([name, column]) => (column.state === "error" ? [[name, column.message]] : [])));
});
const scales = computed((): Map<string, Scale | null> => {
  const numbers = [...loaded.value].filter(([, column]) => column.kind === "number");
  return new Map(numbers.map(([name, column]) => [name, column.kind === "number" ? scaleOf(column) : null]));
});
const passing = computed(() => filtered(known.value?.rows ?? 0, state.filter.value, loaded.value));
const order = computed(() => sorted(passing.value, state.sort.value, loaded.value));
const selected = signal<ReadonlySet<number>>(new Set());

export function OpsView() {
  return (
    <Loaded of={state.header.value} what="the op table">
      {(header) => <OpTable header={header} />}
    </Loaded>
  );
}

function OpTable({ header }: { header: TableHeader }) {
  const specs = new Map(header.columns.map((spec) => [spec.name, spec]));
  const active = state.rowOf.value.get(state.op.value) ?? -1;
  const nameOf = (row: number) => textAt(loaded.value.get("name"), row);
  const last = useSignal(-1);
  const here = active >= 0 ? active : last.value;
  const explainedBy = [...state.sort.value.map(({ column }) => column), ...shown.value];
  const byColumn = loaded.value.get(explainedBy.find((name) => scales.value.get(name)) ?? "");
  const chosen = () => (selected.value.size ? order.value.filter((row) => selected.value.has(row)) : order.value);
  const csv = (rows: Iterable<number>) =>
    toCsv(
      shown.value.flatMap((name) => loaded.value.get(name) ?? []),
      rows,
    );
  const problem = useSignal("");

  useEffect(() => {
    selected.value = new Set();
  }, [header]);
  const worst = nameOf(order.value[0] ?? -1);
  useEffect(() => {
    // Most readers open the first op: when they do, the server knows where its records are.
    const later = setTimeout(() => worst && state.histograms(worst) && state.channels(worst), 400);
    return () => clearTimeout(later);
  }, [worst]);
  const fatal = broken.value.get("name");
  if (fatal !== undefined) return <Problem message={fatal} />;
  const first = ["name", ...state.sort.value.map(({ column }) => column)].filter((name) => specs.has(name));
  if (!first.every((name) => loaded.value.has(name) || broken.value.has(name))) return <Loading what="the op table" />;
  return (
    <section class="view ops" aria-label="Ops">
      <ErrorLine columns={loaded.value} rows={header.rows} active={here} onOpen={(row) => state.openOp(nameOf(row))} />
      <div class="toolbar">
        <FilterBox />
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
        <span class="muted" role="status">
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
        <CopyButton label={selected.value.size ? "Copy selection" : "Copy"} text={() => csv(chosen())} />
        <button type="button" onClick={() => downloadAll(header, problem)}>
          Download CSV
        </button>
        {problem.value && (
          <span class="wrong" role="alert">
            {problem.value}
          </span>
        )}
      </div>
      <Grid
        label="Ops"
        columns={shown.value.map((name, i) => gridColumn(specs.get(name)!, i < state.pinned.value))}
        rows={order.value}
        cell={(row, name) => {
          const wrong = broken.value.get(name);
          if (wrong !== undefined) return { content: "⚠", title: wrong, class: "none" };
          const own = loaded.value.get(name);
          return opCell(own, scales.value.get(name), row, loaded.value.get("reason"), loaded.value.get("module"));
        }}
        sort={state.sort.value}
        onSort={(column, add) => {
          const spec = specs.get(column)!;
          const worstIsLow = spec.type === "text" || spec.better !== "lower";
          state.sort.value = nextSort(state.sort.value, column, worstIsLow, add);
        }}
        active={here}
        onActive={(row) => {
          last.value = row;
          if (state.op.value) state.openOp(nameOf(row));
        }}
        onOpen={(row) => state.openOp(nameOf(row))}
        selected={selected.value}
        onSelect={(rows) => {
          selected.value = rows;
        }}
        onCopy={() => void copy(csv(chosen()))}
        empty={<p>No op passes the filter. Clear the search box, or choose other types and verdicts.</p>}
      />
    </section>
  );
}

function FilterBox() {
  const box = useRef<HTMLInputElement>(null);
  const { filter } = state;
  const wrong = matcher(filter.value);
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
        aria-invalid={typeof wrong === "string"}
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
      {typeof wrong === "string" && (
        <span class="wrong" role="alert">
          {wrong}
        </span>
      )}
    </>
  );
}

function textsOf(name: string): string[] {
  const column = loaded.value.get(name);
  return column?.kind === "text" ? column.texts.filter(Boolean) : [];
}

/** Every op and every column of the run as it is now, also those that are not shown; waits for what is not there yet. */
function downloadAll({ run, rows, columns: specs }: TableHeader, problem: Signal<string>): void {
  const step = state.step.value;
  const all = computed(() => specs.map(({ name }) => state.column(name, run, step)));
  const stop = all.subscribe((columns) => {
    if (columns.some(({ state }) => state === "loading")) return;
    queueMicrotask(() => stop());
    const there = columns.flatMap((column) => (column.state === "ready" ? [column.value] : []));
    const missing = specs.filter((_, i) => columns[i]!.state === "error").map(({ name }) => name);
    problem.value = missing.length ? `Could not be read and are not in the file: ${missing.join(", ")}.` : "";
    download(`${run.replaceAll("/", "_") || "ops"}.csv`, toCsv(there, Array(rows).keys()));
  });
}
