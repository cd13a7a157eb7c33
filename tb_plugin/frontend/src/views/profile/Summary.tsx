// The whole model's times.

import type { ComponentChildren } from "preact";
import { explained } from "../../components/Tooltip.tsx";
import { formatNumber, formatTime, plural } from "../../format.ts";
import {
  differenceText,
  intervalText,
  OUTCOME_WORDS,
  OUTSIDE,
  outcome,
  type Totals,
  type Whole,
} from "../../profile.ts";
import type { Meta } from "../../records.ts";

/** Beyond this share the sum of the ops and the latency need a word. */
const APART = 0.15;
/** Beyond this share the profiler itself is a good part of what it measures. */
const MOST_OVERHEAD = 0.15;

export function Summary({ found, meta }: { found: Totals; meta: Meta }) {
  const { wholes } = found;
  const isQuantized = wholes.some(({ model }) => model === "int8");
  const apart = wholes.filter((whole) => whole.isMeasured && Math.abs(whole.sum / whole.time - 1) > APART);
  return (
    <>
      <dl class="pf-summary" aria-label="Whole model">
        {wholes.map((whole) => (
          <Latency key={whole.model} whole={whole} name={meta[whole.model] ?? ""} />
        ))}
        {wholes.length > 1 && <Compared found={found} />}
        {isQuantized && (
          <Figure
            label="conversion"
            value={formatNumber(found.convertShare, "share")}
            note={formatTime(found.convert)}
            help="Quantizing, dequantizing and reordering around ops, as a share of all int8 time. Fp32 has none of it."
          />
        )}
        {wholes.some(({ rest }) => !Number.isNaN(rest)) && (
          <Figure
            label={OUTSIDE}
            {...perModel(wholes, ({ rest }) => formatTime(rest))}
            help="Time that no op accounts for: the runtime itself, copies, waiting for threads."
          />
        )}
        <Overhead wholes={wholes} />
        <Figure
          label="measured over"
          value={meta.runs ? plural(meta.runs, "run") : "–"}
          note={threads(meta)}
          help="Times per op are medians over these runs."
        />
      </dl>
      {apart.length > 0 && (
        <p class="muted pf-about">
          The rows add up to {apart.map(({ model, sum }) => `${formatTime(sum)} in ${model}`).join(" and ")}, which is
          not the latency: ops overlap on several threads, and timing each op costs time itself. Shares below are of the
          sum.
        </p>
      )}
      {meta.notes && meta.notes.length > 0 && (
        <ul class="muted pf-about" aria-label="Notes">
          {meta.notes.map((note) => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
    </>
  );
}

function Latency({ whole, name }: { whole: Whole; name: string }) {
  const { model, time, isMeasured, p95, perSecond } = whole;
  const notes = [
    Number.isNaN(p95) ? "" : `p95 ${formatTime(p95)}`,
    Number.isNaN(perSecond) ? "" : `${formatNumber(Number(perSecond.toPrecision(4)), "count")} samples/s`,
  ];
  return (
    <Figure
      label={model}
      value={formatTime(time)}
      note={notes.filter(Boolean).join(", ")}
      help={
        <>
          {name && <strong>{name}</strong>}
          <p>
            {isMeasured
              ? "Latency of the whole model, the median over runs; without a profiler, unless the times were imported. Samples per second are those of a run over it."
              : "The sum over all ops; the whole model's latency was not logged."}
          </p>
        </>
      }
    />
  );
}

function Compared({ found: { compared, speedup } }: { found: Totals }) {
  return (
    <>
      <Figure
        label="difference"
        value={differenceText(compared)}
        note={[OUTCOME_WORDS[outcome(compared)], intervalText(compared)].filter(Boolean).join(", ")}
        help="int8 minus fp32 of the whole model, with its 95 % interval where it was measured. Below 0 the quantized model is faster; inside the noise the two cannot be told apart."
      />
      <Figure
        label="speed-up"
        value={`${formatNumber(speedup)} ×`}
        help="fp32 time over int8 time of the whole model. Above 1 the quantized model is faster."
      />
    </>
  );
}

function Overhead({ wholes }: { wholes: Whole[] }) {
  const known = wholes.filter(({ overhead }) => !Number.isNaN(overhead));
  if (!known.length) return null;
  const isHigh = known.some(({ overhead }) => overhead > MOST_OVERHEAD);
  const { value, note } = perModel(known, ({ overhead }) => formatNumber(Number(overhead.toFixed(3)), "share"));
  return (
    <Figure
      label="profiler overhead"
      value={value}
      note={
        <>
          {note}
          {isHigh && <strong class="pf-high"> ⚠ times of short ops are rough</strong>}
        </>
      }
      help="How much longer a run takes while its ops are timed. Normal: 0 to 15 %. Above that the ops look slower than they are, short ones most, or are rough where the profiler's own time was taken off."
    />
  );
}

/** The int8 model's figure, and that of fp32 beside it where there are both. */
function perModel(wholes: Whole[], text: (whole: Whole) => string): { value: string; note: string } {
  const main = wholes.at(-1);
  const other = wholes.length > 1 ? wholes[0]! : null;
  return { value: main ? text(main) : "–", note: other ? `${other.model}: ${text(other)}` : "" };
}

function threads({ threads: count }: Meta): string {
  return count === undefined ? "" : `on ${plural(count, "thread")}`;
}

interface FigureProps {
  label: string;
  value: string;
  note?: ComponentChildren;
  help: ComponentChildren;
}

function Figure({ label, value, note = "", help }: FigureProps) {
  return (
    <div class="pf-figure" {...explained(help)}>
      <dt>{label}</dt>
      <dd>
        {value} {note && <span class="muted">{note}</span>}
      </dd>
    </div>
  );
}
