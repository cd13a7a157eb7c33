// Which column colors the graph, and what its colors mean.

import { batch } from "@preact/signals";
import { useMemo } from "preact/hooks";
import { ColumnOptions } from "../components/ColumnOptions.tsx";
import { Legend } from "../components/Legend.tsx";
import { explained } from "../components/Tooltip.tsx";
import { plural, shorten } from "../format.ts";
import { readyValue } from "../loadable.ts";
import { describe, Help, labelOf } from "../opcolumns.tsx";
import type { Column, ColumnSpec } from "../records.ts";
import * as state from "../state.ts";
import type { Tree } from "./group.ts";
import { type Kinds, OTHER } from "./kinds.ts";
import { type Paint, paintBy } from "./paint.ts";

/** Texts of which nearly every op has its own. */
const NO_KINDS = new Set(["name", "unit", "reason"]);

function colored(): ColumnSpec[] {
  const specs = readyValue(state.header.value)?.columns ?? [];
  return specs.filter(({ name }) => !NO_KINDS.has(name));
}

/** The column that colors: the chosen one where the table has it, else the first that is good or bad. */
function chosenColumn(): ColumnSpec | undefined {
  const specs = colored();
  const byName = new Map(specs.map((spec) => [spec.name, spec]));
  return (
    byName.get(state.paint.value) ??
    byName.get(state.chosenMetric.value || state.worstBy.value) ??
    specs.find(({ better }) => better) ??
    specs[0]
  );
}

export function ColorBy() {
  const chosen = chosenColumn();
  return (
    <label class="check">
      Color by
      <select
        class="graph-color-by"
        title={chosen && describe(chosen)}
        value={chosen?.name ?? ""}
        onChange={(event) => {
          const name = event.currentTarget.value;
          const isText = colored().some((spec) => spec.name === name && spec.type === "text");
          batch(() => {
            state.paint.value = isText ? name : "";
            if (!isText) state.chosenMetric.value = name;
          });
        }}
      >
        <ColumnOptions specs={colored()} />
      </select>
    </label>
  );
}

export function usePaint(tree: Tree): Paint | null {
  const name = chosenColumn()?.name ?? "";
  const column = name ? readyValue(state.column(name)) : undefined;
  const verdicts = columnIfAny("verdict");
  const reason = columnIfAny("reason");
  const rowOf = state.rowOf.value;
  return useMemo(
    () => (column ? paintBy(tree, column, verdicts, rowOf, reason) : null),
    [tree, column, verdicts, rowOf, reason],
  );
}

function columnIfAny(name: string): Column | undefined {
  const isThere = readyValue(state.header.value)?.columns.some((spec) => spec.name === name);
  return isThere ? readyValue(state.column(name)) : undefined;
}

export function Colors({ paint }: { paint: Paint }) {
  const { spec, scale, kinds } = paint;
  return (
    <div class="graph-colors" {...explained(<Help spec={spec} />)}>
      {kinds ? <KindLegend kinds={kinds} /> : <Legend spec={spec} scale={scale} />}
      <span class="muted">{aboutColors(paint)}</span>
    </div>
  );
}

function aboutColors({ spec, scale, kinds }: Paint): string {
  if (scale || spec.name === "verdict") return "a group has the color of its worst op";
  if (!kinds) return `${labelOf(spec)} is neither good nor bad: no colors`;
  return kinds.own.length ? "a group of one kind has its color" : `no op has a ${labelOf(spec)}`;
}

function KindLegend({ kinds: { own, others } }: { kinds: Kinds }) {
  const items = [...own, ...(others ? [{ text: plural(others, "other kind"), color: OTHER }] : [])];
  return (
    <ul class="graph-kinds" aria-label="Colors">
      {items.map(({ text, color }) => (
        <li key={text} class="legend" title={text}>
          <span class="graph-swatch" style={{ background: color }} aria-hidden="true" />
          {shorten(text, 24)}
        </li>
      ))}
    </ul>
  );
}
