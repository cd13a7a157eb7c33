// The model from its input to its output as a strip of colors, its worst ops, and the values of the worst one.

import { HistogramPlot } from "../../components/HistogramPlot.tsx";
import { Legend } from "../../components/Legend.tsx";
import { useWidth } from "../../components/useWidth.ts";
import { causeOf } from "../../configs.ts";
import { ruleWords } from "../../evidence.ts";
import { formatNumber, shortenMiddle, withUnit } from "../../format.ts";
import { shareOutside } from "../../histogram.ts";
import { readyValue } from "../../loadable.ts";
import { labelOf } from "../../opcolumns.tsx";
import { type Column, numberAt } from "../../records.ts";
import { type Scale, scaleOf } from "../../scale.ts";
import * as state from "../../state.ts";
import { isBad } from "../../worst.ts";
import { Card } from "./Card.tsx";
import { by, nameOf, rows, worst } from "./data.ts";
import { Strip } from "./Strip.tsx";

export function Worst() {
  const column = by.value;
  const scale = column?.kind === "number" ? scaleOf(column) : null;
  const known = worst.value.length > 0 && column !== undefined;
  return (
    <>
      <Card name="Where in the model" link="all ops" view="ops" beside={<MostClipping />}>
        {known ? (
          <>
            <Strip column={column} scale={scale} rows={rows.value} />
            <p class="ov-legend">
              <Legend spec={column.spec} scale={scale} />
              <span class="muted">{state.isProbed.value ? MEASURED : ADDED}</span>
            </p>
            <WorstOps column={column} scale={scale} />
          </>
        ) : (
          <p class="muted">No error of any op is known.</p>
        )}
      </Card>
      {known && <Values ops={worst.value.map(nameOf)} />}
    </>
  );
}

const MEASURED = "measured: error of the model's output when only this op is quantized";
const ADDED = "what each op adds to correct inputs; a probe measures what that does to the output";

const CLIPPED = "a_clipped";

function MostClipping() {
  const isThere = readyValue(state.header.value)?.columns.some(({ name }) => name === CLIPPED);
  if (!isThere) return null;
  return (
    <button
      type="button"
      class="link"
      onClick={() => {
        state.chosenSort.value = [{ column: CLIPPED, descending: true }];
        state.view.value = "ops";
      }}
    >
      most clipping →
    </button>
  );
}

function firstLogged(ops: string[]) {
  const first = valuesOf(ops[0]!);
  for (const op of state.has("histograms") ? ops : []) {
    const at = valuesOf(op);
    // The ops after it are only asked for once it is known that it has none.
    if (at.row || at.found?.state === "loading") return at;
  }
  return first;
}

function valuesOf(op: string) {
  const found = state.has("histograms") ? state.histograms(op) : null;
  const row = found?.state === "ready" ? found.value.find(({ role }) => role === "output") : undefined;
  return { op, found, row };
}

function WorstOps({ column, scale }: { column: Column; scale: Scale | null }) {
  return (
    <ol class="ov-worst" aria-label="Worst ops">
      {worst.value.map((row) => {
        const name = nameOf(row);
        const value = numberAt(column, row);
        const rule = causeOf.value.get(name);
        return (
          <li key={row}>
            <button type="button" class="link" title={name} onClick={() => state.openOp(name)}>
              {shortenMiddle(name, 44)}
            </button>
            <span class="tag">{rule ? ruleWords(rule) : isBad(column, row) ? "no single cause" : "normal"}</span>
            <span
              class="ov-value"
              title={`${labelOf(column.spec)}: ${withUnit(value, column.spec.unit)}`}
              style={{ background: scale?.color(value) }}
            >
              {formatNumber(value, column.spec.unit)} {column.spec.unit === "dB" && "dB"}
            </span>
          </li>
        );
      })}
    </ol>
  );
}

/** Of the worst op whose values were logged. */
function Values({ ops }: { ops: string[] }) {
  const [box, width] = useWidth(420, 240);
  const { op, found, row } = firstLogged(ops);
  return (
    <Card name={`Values of ${shortenMiddle(op, 40)}`}>
      <div class="ov-histogram" ref={box}>
        {row ? (
          <HistogramPlot
            name="Values of the worst op"
            row={row}
            width={width}
            outside={row.step ? shareOutside(row) : null}
            logX
            logY
          />
        ) : (
          <p class="muted">{found?.state === "loading" ? "Loading…" : "Its values were not logged."}</p>
        )}
      </div>
      {row && (
        <p class="ov-legend">
          <span class="d-key fp32">fp32</span> <span class="d-key int8">quantized</span>{" "}
          <button type="button" class="link" onClick={() => state.openOp(op)}>
            all about this op →
          </button>
        </p>
      )}
    </Card>
  );
}
