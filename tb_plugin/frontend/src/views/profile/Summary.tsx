// The whole model's times.

import { explained } from "../../components/Tooltip.tsx";
import { formatNumber, formatTime } from "../../format.ts";
import { OUTSIDE, type Totals } from "../../profile.ts";
import type { Meta } from "../../records.ts";

/** Beyond this the sum of the ops and the latency need a word. */
const APART = 0.1;

export function Summary({ found, meta }: { found: Totals; meta: Meta }) {
  const isMeasured = meta.int8_total_us !== undefined && meta.fp32_total_us !== undefined;
  const latency = isMeasured
    ? "Latency of the whole model, measured."
    : "The sum over all ops; the whole model's latency was not logged.";
  const fewer = found.speedup < 1 ? "slower" : "faster";
  return (
    <>
      <dl class="pf-summary" aria-label="Whole model">
        <Figure label="fp32" value={formatTime(found.fp32)} help={latency} />
        <Figure label="int8" value={formatTime(found.int8)} help={latency} />
        <Figure
          label="speed-up"
          value={`${formatNumber(found.speedup)} ×`}
          note={Number.isFinite(found.speedup) ? fewer : ""}
          help="fp32 time over int8 time of the whole model. Above 1 the quantized model is faster."
        />
        <Figure
          label="conversion"
          value={formatNumber(found.convertShare, "share")}
          note={formatTime(found.convert)}
          help="Quantizing, dequantizing and reordering around ops, as a share of all int8 time. Fp32 has none of it."
        />
        <Figure
          label={OUTSIDE}
          value={formatTime(found.restInt8)}
          note={Number.isNaN(found.restFp32) ? "" : `fp32: ${formatTime(found.restFp32)}`}
          help="Time in int8 that no op accounts for: the runtime itself, copies, waiting for threads."
        />
        <Figure
          label="measured over"
          value={meta.runs === undefined ? "–" : `${meta.runs} runs`}
          note={threads(meta)}
          help="Times per op are medians over these runs."
        />
      </dl>
      {isMeasured && isApart(found) && (
        <p class="muted pf-apart">
          The rows add up to {formatTime(found.fp32Sum)} in fp32 and {formatTime(found.int8Sum)} in int8, which is not
          the latency: ops overlap on several threads, and timing each op costs time itself. Shares below are of the
          sum.
        </p>
      )}
    </>
  );
}

function isApart({ fp32, fp32Sum, int8, int8Sum }: Totals): boolean {
  return Math.abs(fp32Sum / fp32 - 1) > APART || Math.abs(int8Sum / int8 - 1) > APART;
}

function threads({ threads: count }: Meta): string {
  return count === undefined ? "" : count === 1 ? "on 1 thread" : `on ${count} threads`;
}

function Figure({ label, value, note = "", help }: { label: string; value: string; note?: string; help: string }) {
  return (
    <div class="pf-figure" {...explained(help)}>
      <dt>{label}</dt>
      <dd>
        {value} {note && <span class="muted">{note}</span>}
      </dd>
    </div>
  );
}
