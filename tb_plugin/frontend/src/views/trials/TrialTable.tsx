// All runs with what came of them; the ticked ones are compared below.

import { computed, signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { bestSoFar, drop } from "../../compare.ts";
import { CopyButton } from "../../components/CopyButton.tsx";
import { Grid, type GridCell, type GridColumn } from "../../components/Grid.tsx";
import { toCsv } from "../../csv.ts";
import { formatNumber, formatScore, plural, signed, withUnit } from "../../format.ts";
import { gridColumn } from "../../opcolumns.tsx";
import { nextSort, sorted } from "../../order.ts";
import { type ColumnSpec, numberAt, type Trial, textAt } from "../../records.ts";
import * as state from "../../state.ts";
import { fallbackOf } from "../../trialtable.ts";
import { openFallback } from "./FallbackSet.tsx";
import { pick, refusal, table, togglePick } from "./picks.ts";

const ROW = 28;
const WIDTHS: Record<string, number> = {
  run: 180,
  accuracy: 100,
  drop: 126,
  target: 84,
  best: 112,
  fallback: 84,
  wall_s: 92,
  notes: 300,
};

/** null is the usual order: the best accuracy first. */
const chosenSort = signal<state.SortKey[] | null>(null);
const sort = computed(() => chosenSort.value ?? [{ column: "accuracy", descending: !table.value.lower }]);
const bests = computed(() => bestSoFar(table.value.runs.map(({ trial }) => trial)));
const columns = computed(() => {
  const places = table.value.runs.map(({ run }) => state.compared.value.indexOf(run));
  const values = Float64Array.from(places, (place) => (place < 0 ? Number.NaN : place));
  return new Map([["compare", { kind: "number" as const, spec: { name: "compare" }, values }], ...table.value.columns]);
});
const order = computed(() => sorted(Uint32Array.from(table.value.runs.keys()), sort.value, columns.value));
/** Where the keyboard stands, while the run that stood there is still the chosen one. */
const cursor = signal({ run: "", row: -1 });

export function TrialTable() {
  const { runs, hiddenConfig } = table.value;
  const rowOf = (name: string) => runs.findIndex(({ run }) => run === name);
  // The table opens with the best trials in sight; it goes to a run only when that is chosen while it is open.
  const runAtFirst = useRef(state.run.value);
  const chosen = state.run.value === runAtFirst.current ? -1 : rowOf(state.run.value);
  const active = cursor.value.run === state.run.value && cursor.value.row < runs.length ? cursor.value.row : chosen;
  const specs = [...table.value.columns.values()].map(({ spec }) => spec);
  return (
    <>
      <div class="toolbar">
        <Summary />
        <span class="spacer" />
        {refusal.value && (
          <span class="wrong" role="alert">
            {refusal.value}
          </span>
        )}
        {runs.length > state.MOST_PICKED && (
          <button
            type="button"
            title="A heat map of their ops, in the order of the table"
            onClick={() => {
              const first = [...order.value].slice(0, state.MOST_COMPARED);
              state.compared.value = first.map((row) => runs[row]!.run);
              refusal.value = "";
            }}
          >
            Compare the first {Math.min(runs.length, state.MOST_COMPARED)}
          </button>
        )}
        <CopyButton label="Copy table" text={() => toCsv([...table.value.columns.values()], order.value)} />
      </div>
      <div class="trials-table" style={{ height: `${64 + ROW * runs.length}px` }}>
        <Grid
          label="Trials"
          columns={[TICK, ...specs.map(columnOf)]}
          rows={order.value}
          cell={cell}
          sort={sort.value}
          onSort={(column, add) => {
            const spec = specs.find(({ name }) => name === column);
            const bestIsLow = spec?.type === "text" || spec?.better !== "higher";
            chosenSort.value = nextSort(sort.value, column, bestIsLow, add);
          }}
          active={active}
          onActive={(row) => {
            cursor.value = { run: state.run.value, row };
          }}
          onOpen={(row) => state.chooseRun(runs[row]!.run)}
          selected={new Set(state.compared.value.map(rowOf).filter((row) => row >= 0))}
          onSelect={(rows) => pick(new Set([...rows].map((row) => runs[row]!.run)))}
          empty={<p>No runs.</p>}
        />
      </div>
      {hiddenConfig.length > 0 && (
        <p class="trials-hint muted" title={hiddenConfig.join(", ")}>
          {plural(hiddenConfig.length, "further config key")} not shown, among them{" "}
          {hiddenConfig.slice(0, 3).join(", ")}.
        </p>
      )}
    </>
  );
}

const TICK: GridColumn = {
  id: "compare",
  label: "Compare",
  help: (
    <>
      Tick 2 to {state.MOST_PICKED} runs to compare them op by op below. The first is the base that the others are held
      against. <kbd>Space</kbd> ticks the row on which the keyboard stands.
    </>
  ),
  description: `Tick 2 to ${state.MOST_PICKED} runs to compare them op by op below; the first is the base.`,
  width: 86,
  pinned: true,
};

function columnOf(spec: ColumnSpec): GridColumn {
  const column = gridColumn(spec, spec.name === "run");
  const width = WIDTHS[spec.name] ?? Math.min(220, Math.max(96, column.width));
  return { ...column, width, heads: spec.name === "run" };
}

function Summary() {
  const { runs, mixed, columns } = table.value;
  const logged = runs.filter(({ trial }) => trial).length;
  const met = runs.filter((_, row) => textAt(columns.get("target"), row) === "met").length;
  const asked = runs.some(({ trial }) => trial?.target != null);
  return (
    <span role="status">
      <strong>{plural(runs.length, "run")}</strong>
      <span class="muted">
        {logged < runs.length && `, ${logged} with a trial`}
        {asked && `, ${met} of them meet the target`}
        {mixed && "; some log a loss and some an accuracy, which cannot be ranked together"}
      </span>
    </span>
  );
}

function cell(row: number, column: string): GridCell {
  const { run, trial, error } = table.value.runs[row]!;
  if (column === "compare") return { content: <Tick run={run} /> };
  if (column === "run") {
    const isChosen = run === state.run.value;
    const also = trial && trial.name !== run ? `, logged as ${trial.name}` : "";
    return {
      content: run,
      title: `${run}${also}${isChosen ? " (the chosen run)" : ""}`,
      class: isChosen ? "trials-chosen" : "",
    };
  }
  if (!trial) return column === "accuracy" ? missing(error) : { content: "" };
  return trialCell(trial, row, column);
}

function missing(error: string): GridCell {
  const text = error ? `could not be read: ${error}` : "no trial logged";
  return { content: <span class={error ? "wrong" : "muted"}>{text}</span>, title: text, class: "trials-across" };
}

function trialCell(trial: Trial, row: number, column: string): GridCell {
  const found = table.value.columns.get(column)!;
  if (column === "target") return targetCell(trial, textAt(found, row));
  if (found.kind === "text") return { content: textAt(found, row), title: textAt(found, row).slice(0, 2000) };
  const value = numberAt(found, row);
  if (column === "fallback") return fallbackCell(trial, table.value.runs[row]!.run);
  if (Number.isNaN(value)) return { content: "–", title: "not logged", class: "none" };
  if (column === "accuracy")
    return { content: formatScore(value), title: `${value}${trial.lower_is_better ? ", lower is better" : ""}` };
  if (column === "best") {
    const isNew = bests.value[row]!.isNew;
    return {
      content: `${isNew ? "★ " : ""}${formatScore(value)}`,
      title: isNew ? "the best yet" : "an earlier trial was as good or better",
    };
  }
  if (column === "drop") return dropCell(trial);
  return { content: formatNumber(value, found.spec.unit), title: withUnit(value, found.spec.unit) };
}

function dropCell(trial: Trial): GridCell {
  const { absolute, relative } = drop(trial)!;
  const side = absolute === 0 ? "the same as" : absolute > 0 ? "worse than" : "better than";
  const share = Number.isNaN(relative) ? "" : `, ${withUnit(Math.abs(relative), "share")} of it`;
  const by = absolute === 0 ? "" : `${formatScore(Math.abs(absolute))} `;
  return {
    content: absolute > 0 ? formatScore(absolute) : signed(absolute, formatScore),
    title: `${by}${side} the baseline ${formatScore(trial.baseline!)}${absolute === 0 ? "" : share}`,
  };
}

function targetCell(trial: Trial, met: string): GridCell {
  if (!met) return { content: "–", title: "no target was given", class: "none" };
  const limit = `${trial.lower_is_better ? "at most" : "at least"} ${formatScore(trial.target!)} was asked for`;
  return {
    content: <span class={`verdict ${met === "met" ? "ok" : "bad"}`}>{met === "met" ? "✓ met" : "✗ missed"}</span>,
    title: limit,
  };
}

function fallbackCell(trial: Trial, run: string): GridCell {
  const ops = fallbackOf(trial);
  if (!ops.length) return { content: "–", title: "the trial names none (fallback=[…])", class: "none" };
  const most = 40;
  const rest = ops.length > most ? `\nand ${ops.length - most} more` : "";
  const label = `${plural(ops.length, "op")} in fp32 in ${run}: show which`;
  return {
    content: (
      <button type="button" class="link" aria-label={label} onClick={() => openFallback(run)}>
        {ops.length}
      </button>
    ),
    title: ops.slice(0, most).join("\n") + rest,
  };
}

function Tick({ run }: { run: string }) {
  const place = state.compared.value.indexOf(run);
  return (
    <label class="check">
      <input
        type="checkbox"
        aria-label={`Compare ${run}`}
        checked={place >= 0}
        onChange={(event) => {
          togglePick(run);
          // A refused tick changes no state, so nothing else would take it back.
          event.currentTarget.checked = state.compared.value.includes(run);
        }}
      />
      {place === 0 && <span class="muted">base</span>}
    </label>
  );
}
