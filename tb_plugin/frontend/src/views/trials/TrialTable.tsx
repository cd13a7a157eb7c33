// All runs with what came of them; the ticked ones are compared below.

import { computed, signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { CopyButton } from "../../components/CopyButton.tsx";
import { Grid, type GridColumn } from "../../components/Grid.tsx";
import { toCsv } from "../../csv.ts";
import { formatRatio, listed, plural, withUnit } from "../../format.ts";
import { mainObjective, objective } from "../../objectives.ts";
import { gridColumn } from "../../opcolumns.tsx";
import { nextSort, sorted } from "../../order.ts";
import { type ColumnSpec, textAt } from "../../records.ts";
import * as state from "../../state.ts";
import { table } from "../../trials.ts";
import { bestSaving } from "../../trialtable.ts";
import { pick, refusal } from "./picks.ts";
import { trialCell } from "./trialcells.tsx";

const ROW = 28;
const MOST_SAME = 8;
/** Of a cost: less than this is little for the loss of accuracy and the work. */
const WORTH = 0.1;
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
const columns = computed(() => {
  const places = table.value.runs.map(({ run }) => state.compared.value.indexOf(run));
  const values = Float64Array.from(places, (place) => (place < 0 ? Number.NaN : place));
  return new Map([["compare", { kind: "number" as const, spec: { name: "compare" }, values }], ...table.value.columns]);
});
/** fp32 is above the trials, however they are sorted. */
const order = computed(() => {
  const { runs, fp32 } = table.value;
  const tried = sorted(Uint32Array.from(runs.keys()), sort.value, columns.value);
  return fp32 ? Uint32Array.of(runs.length, ...tried) : tried;
});
/** Where the keyboard stands, while the run that stood there is still the chosen one. */
const cursor = signal({ run: "", row: -1 });

export function TrialTable() {
  const { runs, hiddenConfig, sameConfig } = table.value;
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
              const first = [...order.value].filter((row) => row < runs.length).slice(0, state.MOST_COMPARED);
              state.compared.value = first.map((row) => runs[row]!.run);
              refusal.value = "";
            }}
          >
            Compare the first {Math.min(runs.length, state.MOST_COMPARED)}
          </button>
        )}
        <CopyButton label="Copy table" text={() => toCsv([...table.value.columns.values()], order.value)} />
      </div>
      <Savings />
      <div class="trials-table" style={{ height: `${64 + ROW * order.value.length}px` }}>
        <Grid
          label="Trials"
          columns={[TICK, ...specs.map(columnOf)]}
          rows={order.value}
          cell={trialCell}
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
          onOpen={(row) => runs[row] && state.chooseRun(runs[row].run)}
          selected={new Set(state.compared.value.map(rowOf).filter((row) => row >= 0))}
          onSelect={(rows) => pick(new Set([...rows].flatMap((row) => runs[row]?.run ?? [])))}
          empty={<p>No runs.</p>}
        />
      </div>
      {sameConfig.length > 0 && (
        <p class="trials-hint muted" title={sameConfig.join(", ")}>
          {runs.length > 1 ? "All of them" : "Config"}: {listed(sameConfig, MOST_SAME)}
        </p>
      )}
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

/** A trial that meets its target and is hardly faster than fp32 is no gain, which nothing else would say. */
function Savings() {
  const { runs, objectives } = table.value;
  const key = mainObjective(objectives);
  if (!key) return null;
  const { label, unit, better } = objective(key);
  const saving = better === "lower" ? bestSaving(runs, key) : null;
  if (!saving || saving.share >= WORTH) return null;
  const own = runs.find(({ run }) => run === saving.run)?.trial;
  const [now, before] = [own?.objectives, own?.baseline_objectives].map((of) =>
    withUnit(of?.[key] ?? Number.NaN, unit),
  );
  return (
    <p class="trials-hint trials-warning">
      <span aria-hidden="true">⚠ </span>
      {saving.share > 0
        ? `Of the trials that meet the target, ${saving.run} saves most: only ${formatRatio(100 * saving.share)} %`
        : "No trial that meets the target saves anything"}{" "}
      against fp32: {label.toLowerCase()} {now} instead of {before}.
    </p>
  );
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
        {asked && `, ${met} of them ${met === 1 ? "meets" : "meet"} the target`}
        {mixed && "; some log a loss and some an accuracy, which cannot be ranked together"}
      </span>
    </span>
  );
}
