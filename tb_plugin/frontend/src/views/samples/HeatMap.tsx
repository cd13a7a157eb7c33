// What the worst ops add to the worst samples: whether an op breaks a few inputs, or all of them.

import { useMemo } from "preact/hooks";
import { formatNumber, shortenMiddle } from "../../format.ts";
import { readyValue } from "../../loadable.ts";
import { sorted } from "../../order.ts";
import { numberAt, type SampleRow } from "../../records.ts";
import { decibels, ofOp, type Sample } from "../../samples.ts";
import { makeScale, scaleOf } from "../../scale.ts";
import * as state from "../../state.ts";
import { heads } from "../../worst.ts";

const MOST_OPS = 16;
const MOST_SAMPLES = 24;
const NORMAL_DB = 25;

interface Props {
  rows: SampleRow[];
  samples: Sample[];
  /** The place of the sample that is looked at. */
  chosen: number | undefined;
}

export function HeatMap({ rows, samples, chosen }: Props) {
  const ops = worstOps(rows);
  const known = useMemo(
    () => new Map(ops.map((row) => [row.op, ofOp(row)])),
    [ops.map(({ op }) => op).join("|"), rows],
  );
  const most = Math.max(0, ...[...known.values()].map(({ sqnrDb }) => sqnrDb.length));
  const shown = samples.filter(({ index }) => index < most).slice(0, MOST_SAMPLES);
  if (!ops.length || !shown.length) return null;
  return (
    <div class="sm-map">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, also by keyboard */}
      <div class="sm-scroll" tabIndex={0} role="group" aria-label="Ops by sample">
        <table aria-label="What ops add to samples">
          <thead>
            <tr>
              <th scope="col">op</th>
              {state.isProbed.value && (
                <th scope="col" title="What quantizing only this op does to the output of the model, over all samples">
                  output
                </th>
              )}
              {shown.map(({ index }) => (
                <th key={index} scope="col" class={index === chosen ? "chosen" : ""}>
                  {index}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {ops.map(({ op }) => (
              <Row key={op} op={op} of={known.get(op)!} shown={shown} />
            ))}
          </tbody>
        </table>
      </div>
      <p class="muted">
        The worst ops by the worst samples{most < samples.length && `, of the first ${most}, for which ops keep it`}:
        signal to noise in dB of what the op adds to the sample with correct inputs; gray where only its whole error is
        known, which may have come from before it. {NORMAL_DB} dB and more is normal and has no color.
      </p>
    </div>
  );
}

function Row({ op, of: { sqnrDb, isAdded }, shown }: { op: string; of: ReturnType<typeof ofOp>; shown: Sample[] }) {
  const name = isAdded ? state.ADDED : "total_sqnr_db";
  const scale = makeScale({ name, unit: "dB", better: "higher", normal: [NORMAL_DB, null] }, [0]);
  return (
    <tr>
      <th scope="row">
        <button type="button" class="link" title={op} onClick={() => state.openOp(op)}>
          {shortenMiddle(op, 30)}
        </button>
      </th>
      {state.isProbed.value && <EffectCell op={op} />}
      {shown.map(({ index }) => {
        const value = sqnrDb[index] ?? Number.NaN;
        return (
          <td
            key={index}
            title={`${op}, sample ${index}: ${decibels(value)}`}
            style={{ background: Number.isNaN(value) ? undefined : scale?.color(value) }}
          >
            {Number.isFinite(value) ? value.toFixed(0) : Number.isNaN(value) ? "" : value > 0 ? "∞" : "✗"}
          </td>
        );
      })}
    </tr>
  );
}

/** An op that adds little to its own result, and much to the model's, does not look healthy. */
function EffectCell({ op }: { op: string }) {
  const effect = readyValue(state.column(state.EFFECT));
  const row = state.rowOf.value.get(op) ?? -1;
  const value = numberAt(effect, row);
  if (Number.isNaN(value)) return <td class="sm-effect" />;
  const scale = effect?.kind === "number" ? scaleOf(effect) : null;
  return (
    <td class="sm-effect" style={{ background: scale?.color(value) }}>
      {formatNumber(value, effect?.spec.unit)}
    </td>
  );
}

/** In the order that all views have. */
function worstOps(rows: SampleRow[]): SampleRow[] {
  const byName = new Map(rows.map((row) => [row.op, row]));
  const columns = new Map(
    [state.EFFECT, state.ADDED].flatMap((name) => {
      const column = readyValue(state.column(name));
      return column ? [[name, column] as const] : [];
    }),
  );
  const rowsKnown = [...state.rowOf.value].filter(([name]) => byName.has(name));
  const nameOf = new Map(rowsKnown.map(([name, row]) => [row, name]));
  const order = sorted(Uint32Array.from(nameOf.keys()), state.sortWorst.value, columns);
  const worst = heads(order, columns.get(state.worstBy.value), MOST_OPS);
  return worst.map((row) => byName.get(nameOf.get(row)!)!);
}
