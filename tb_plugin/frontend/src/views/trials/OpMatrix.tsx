// Ops by trial: one metric as a heat map, or what it gained and lost against the base.

import { signal } from "@preact/signals";
import { type Change, changesOf, describeChange, runColumn, shortChange } from "../../compare.ts";
import { Grid, type GridCell, type GridColumn } from "../../components/Grid.tsx";
import { formatNumber, shorten, shortenMiddle, signed, withUnit } from "../../format.ts";
import { Help, labelOf, nameCell, wholeOf } from "../../opcolumns.tsx";
import { nextSort } from "../../order.ts";
import { differenceColor } from "../../scale.ts";
import * as state from "../../state.ts";
import * as matrix from "./matrix.ts";

const ROW = 28;
const cursor = signal(-1);

export function OpMatrix() {
  const { union, metric } = matrix;
  const sort = matrix.sort.value;
  const open = (row: number) => state.openOp(union.value.names[row]!);
  const opened = state.op.value ? union.value.names.indexOf(state.op.value) : -1;
  return (
    <div class="trials-matrix" style={{ height: `${64 + ROW * Math.max(3, matrix.order.value.length)}px` }}>
      <Grid
        label="Ops by trial"
        columns={columns()}
        rows={matrix.order.value}
        cell={cell}
        sort={sort}
        onSort={(column, add) => {
          const worstIsLow = column === "name" || (column !== "largest" && metric.value.better !== "lower");
          state.matrix.value = { ...state.matrix.value, sort: nextSort(sort, column, worstIsLow, add) };
        }}
        active={opened >= 0 ? opened : cursor.value}
        onActive={(row) => {
          cursor.value = row;
          if (state.op.value) open(row);
        }}
        onOpen={open}
        empty={<p>No op passes the filters. Clear the search box, or show also ops whose config did not change.</p>}
      />
    </div>
  );
}

function columns(): GridColumn[] {
  const spec = matrix.metric.value;
  const unit = spec.unit ?? "";
  const anyChanged = matrix.changedCount.value > 0;
  const largest =
    "The largest difference from the base among the runs. Ops that one run quantizes and another keeps in fp32 come first: " +
    "what is not quantized has no error to subtract.";
  return [
    {
      id: "name",
      label: "Op",
      width: nameWidth(),
      pinned: true,
      heads: true,
      help: "The op's name; press a row to open it.",
      description: "The op's name",
    },
    ...matrix.runs.value.map((run, i): GridColumn => {
      const isBase = i === 0;
      const told = isBase ? "the base" : state.matrix.value.difference ? `${run} minus the base` : run;
      return {
        id: runColumn(run),
        label: shorten(run, 22),
        unit: isBase ? `${unit} · base` : state.matrix.value.difference ? `${unit} · minus base` : unit,
        width: anyChanged && !isBase ? 196 : 128,
        align: "right",
        help: (
          <>
            <p>
              <strong>{run}</strong>
              {isBase && ", the base"}
            </p>
            <Help spec={spec} />
          </>
        ),
        description: `${labelOf(spec)} of ${told}`,
      };
    }),
    {
      id: "largest",
      label: "Largest difference",
      unit,
      width: matrix.runs.value.length > 3 ? 164 : 270,
      align: "right",
      help: largest,
      description: largest,
    },
  ];
}

const LETTER = 7.6;

/** As wide as the longest name, as far as the runs leave room for it. */
function nameWidth(): number {
  const longest = matrix.union.value.names.reduce((most, { length }) => Math.max(most, length), 0);
  return Math.round(Math.min(matrix.runs.value.length > 3 ? 300 : 420, Math.max(160, 24 + LETTER * longest)));
}

function cell(row: number, column: string): GridCell {
  const name = matrix.union.value.names[row]!;
  if (column === "name") return nameCell(name);
  return column === "largest" ? largestCell(row) : valueCell(row, matrix.placeOf(column));
}

function largestCell(row: number): GridCell {
  const value = matrix.largest.value[row]!;
  if (value === Number.POSITIVE_INFINITY) {
    const isKept = matrix.runs.value.some((_, run) => matrix.isKept(run, row));
    if (isKept) {
      const title = "some of the runs keep this op in fp32, where it adds no error: there is nothing to subtract";
      return { content: "in fp32", title, class: "none" };
    }
    const fused = matrix.runs.value.map((run, i) => ({ run, whole: wholeOf(matrix.whyMissing(i, row)) }));
    const part = fused.find(({ whole }) => whole);
    return {
      content: part ? `part of ${shortenMiddle(part.whole, 16)} in ${part.run}` : "one side only",
      title: part
        ? `${part.run} runs it as a part of ${part.whole} and compares it there: there is nothing to subtract`
        : "the config changed and only one side has a value: there is nothing to subtract",
      class: "none",
    };
  }
  if (Number.isNaN(value)) return { content: "–", title: "no two of the runs have a value", class: "none" };
  const text = signedValue(value);
  return { content: text, title: `${text} ${matrix.metric.value.unit ?? ""}` };
}

function valueCell(row: number, run: number): GridCell {
  const spec = matrix.metric.value;
  const value = matrix.values.value[run]![row]!;
  const changes = matrix.changed.value[run]?.[row] ? changesOf(matrix.configOf(0, row), matrix.configOf(run, row)) : [];
  const told = changes.length ? `\n${changes.map(describeChange).join("\n")}` : "";
  if (Number.isNaN(value)) {
    if (matrix.isKept(run, row)) {
      return { content: <Value text="none" changes={changes} />, title: `kept in fp32: no error is added here${told}` };
    }
    const why = matrix.whyMissing(run, row);
    return { content: <Value text={why ? "–" : "…"} changes={changes} />, title: why + told, class: "none" };
  }
  const by = run === 0 ? Number.NaN : matrix.differences.value[run]![row]!;
  const title = `${withUnit(value, spec.unit)}${compared(by, row)}${told}`;
  if (!state.matrix.value.difference || run === 0) {
    const background = state.matrix.value.difference ? "" : (matrix.scale.value?.color(value) ?? "");
    return { content: <Value text={formatNumber(value, spec.unit)} changes={changes} />, title, background };
  }
  if (Number.isNaN(by))
    return {
      content: <Value text="–" changes={changes} />,
      title: `${title}\nthe base has no value: ${matrix.whyMissing(0, row)}`,
      class: "none",
    };
  const level = spec.better && matrix.span.value ? by / matrix.span.value : 0;
  return {
    content: <Value text={signedValue(by)} changes={changes} />,
    title,
    background: differenceColor(spec.better === "lower" ? -level : level),
  };
}

function compared(by: number, row: number): string {
  if (Number.isNaN(by)) return "";
  const { unit, better } = matrix.metric.value;
  const from = `the base's ${withUnit(matrix.values.value[0]![row]!, unit)}`;
  if (by === 0) return `, the same as ${from}`;
  if (!better) return `, ${by > 0 ? "more" : "less"} than ${from}`;
  return `, ${withUnit(Math.abs(by), unit)} ${by > 0 === (better === "higher") ? "better" : "worse"} than ${from}`;
}

function signedValue(value: number): string {
  return signed(value, (size) => formatNumber(size, matrix.metric.value.unit));
}

function Value({ text, changes }: { text: string; changes: Change[] }) {
  const [first, ...others] = changes;
  if (!first) return <>{text}</>;
  return (
    <span class="trials-value">
      <span class="trials-change">
        {shortChange(first)}
        {others.length > 0 && ` +${others.length}`}
      </span>
      <span>{text}</span>
    </span>
  );
}
