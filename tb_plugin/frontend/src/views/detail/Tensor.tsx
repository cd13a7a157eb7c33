// One tensor of the op, its weights or its output: histograms, error, channels.

import { useState } from "preact/hooks";
import { ErrorPlot, HistogramPlot } from "../../components/HistogramPlot.tsx";
import { Loading } from "../../components/Status.tsx";
import { formatNumber } from "../../format.ts";
import { shareOutside } from "../../histogram.ts";
import type { Loadable } from "../../loadable.ts";
import type { ChannelRow, HistogramRow } from "../../records.ts";
import { Channels } from "./Channels.tsx";

const WORDS = {
  output: { tensor: "Output", values: "Activation", channels: "Channel ranges" },
  weight: { tensor: "Weight", values: "Weight", channels: "Weight channel ranges" },
};

interface Props {
  role: keyof typeof WORDS;
  histogram: HistogramRow | undefined;
  channels: Loadable<ChannelRow | undefined>;
  /** The exact share of clipped values, where the table has it. */
  clipped: number;
  /** Smallest and largest fp32 value of the samples that were compared; NaN where the table does not tell. */
  seen: [number, number];
  width: number;
}

export function Tensor({ role, histogram, channels, clipped, seen, width }: Props) {
  const words = WORDS[role];
  const [scales, setScales] = useState({ logX: true, logY: true });
  if (!histogram) return null;
  // With a scale for each channel the limits are those of the widest one, which say nothing about the others.
  const outside = Number.isNaN(clipped) ? (histogram.step ? shareOutside(histogram) : null) : clipped;
  const toggle = (which: "logX" | "logY", label: string) => (
    <label class="check">
      <input
        type="checkbox"
        checked={scales[which]}
        onChange={(event) => setScales({ ...scales, [which]: event.currentTarget.checked })}
      />
      {label}
    </label>
  );
  return (
    <section class="d-section" aria-label={`${words.values}s`}>
      <div class="d-head">
        <h3>{words.tensor}</h3>
        <span class="d-key fp32">fp32</span>
        <span class="d-key int8">quantized</span>
        <span class="spacer" />
        {toggle("logX", "log values")}
        {toggle("logY", "log share")}
      </div>
      <HistogramPlot name={`${words.values} histogram`} row={histogram} width={width} outside={outside} {...scales} />
      <p class="muted">
        {rangeSentence(histogram, outside)} {clearlySentence(histogram, outside)} {driftSentence(histogram, seen)}
      </p>
      <details>
        <summary>Error histogram</summary>
        <ErrorPlot name={`${words.values} error histogram`} row={histogram} width={width} {...scales} />
        <p class="muted">
          Shaded: ±half a step, which is all that rounding alone can do. What lies outside was clipped, or arrived from
          upstream.
        </p>
      </details>
      {channels.state === "loading" && <Loading what="channels" />}
      {channels.state === "error" && <p class="muted">Channels: {channels.message}</p>}
      {channels.state === "ready" && channels.value && (
        <Channels name={words.channels} row={channels.value} width={width} />
      )}
    </section>
  );
}

function rangeSentence({ limits, step }: HistogramRow, outside: number | null): string {
  if (!limits) return "Not quantized with a fixed range, so there are no clip limits.";
  const range = `${formatNumber(limits[0])} to ${formatNumber(limits[1])}`;
  const share =
    outside === null ? "" : ` ${formatNumber(outside, "share")} of the fp32 values lie outside (normal: under 0.1 %).`;
  if (step) return `Dashed: the quantized type holds ${range} in steps of ${formatNumber(step)}.${share}`;
  return `Each channel has a scale of its own. Dashed: the widest of them holds ${range}.${share}`;
}

/** The limits come from calibration, the values from the samples of the diagnosis: whether they go together. */
function driftSentence({ limits, step }: HistogramRow, [low, high]: [number, number]): string {
  if (!limits || !step || Number.isNaN(low + high)) return "";
  const used = Math.max(0, Math.min(high, limits[1]) - Math.max(low, limits[0])) / (limits[1] - limits[0]);
  return `The samples compared here reach from ${formatNumber(low)} to ${formatNumber(high)}, ${formatNumber(Number(used.toFixed(3)), "share")} of the range that calibration chose.`;
}

/** Values just outside are rounded to the end of the range, as others are to their neighbors. */
function clearlySentence(histogram: HistogramRow, outside: number | null): string {
  const clearly = outside && histogram.step ? shareOutside(histogram, histogram.step / 2) : null;
  return clearly === null
    ? ""
    : `${formatNumber(clearly, "share")} by more than the half step that rounding takes anyway.`;
}
