// Ranges of the channels, worst first, outliers marked.

import { useState } from "preact/hooks";
import {
  type Channel,
  type ChannelOrder,
  channelsOf,
  LOST_DB,
  median,
  OUTLIER_RATIO,
  ordered,
} from "../../channels.ts";
import { Plot } from "../../components/Plot.tsx";
import { formatNumber, plural } from "../../format.ts";
import type { ChannelRow } from "../../records.ts";

const MOST_BARS = 256;
const LISTED = 6;

export function Channels({ name, row, width }: { name: string; row: ChannelRow; width: number }) {
  const [by, setBy] = useState<ChannelOrder>("reach");
  const all = channelsOf(row);
  const shown = ordered(all, by).slice(0, MOST_BARS);
  const reaches = all.map(({ reach }) => reach).filter((reach) => reach > 0);
  if (!reaches.length) return null;
  const middle = median(reaches);
  const outliers = all.filter(({ isOutlier }) => isOutlier);
  const lost = all.filter(({ sqnr }) => sqnr < LOST_DB);
  const largest = Math.max(...reaches);
  const lowest = Math.max(Math.min(...reaches), largest / 1e5);
  const told = `${plural(outliers.length, "outlier")} of ${plural(all.length, "channel")} (over ${OUTLIER_RATIO} times the median ${formatNumber(middle)}), ${lost.length} under ${LOST_DB} dB`;
  return (
    <div>
      <div class="d-head">
        <h3>Channels</h3>
        <span class="spacer" />
        <label class="check">
          sort by
          <select value={by} onChange={(event) => setBy(event.currentTarget.value as ChannelOrder)}>
            <option value="reach">largest range</option>
            <option value="sqnr">lowest total SQNR</option>
            <option value="index">channel</option>
          </select>
        </label>
      </div>
      <Plot
        name={name}
        description={told}
        x={{
          domain: [0, shown.length],
          label: by === "index" ? "channel" : "channels, worst first",
          ticks: 4,
          unit: "count",
        }}
        y={{ domain: [lowest / 1.5, largest * 1.2], kind: "log", label: "largest |value|" }}
        width={width}
        height={170}
      >
        {(x, y) => {
          const wide = Math.max(1, x(1) - x(0) - 0.5);
          const floor = y.range()[0]!;
          return (
            <>
              {shown.map((channel, i) => (
                <rect
                  key={channel.index}
                  class={channel.isOutlier ? "d-bar outlier" : channel.sqnr < LOST_DB ? "d-bar lost" : "d-bar"}
                  x={x(i)}
                  width={wide}
                  y={y(Math.max(lowest, channel.reach || lowest))}
                  height={Math.max(1, floor - y(Math.max(lowest, channel.reach || lowest)))}
                >
                  <title>{sentence(channel)}</title>
                </rect>
              ))}
              <line class="d-median" x1={x.range()[0]} x2={x.range()[1]} y1={y(middle)} y2={y(middle)} />
            </>
          );
        }}
      </Plot>
      <p class="muted">
        <span class="d-key outlier">outlier</span> <span class="d-key lost">under {LOST_DB} dB</span> {told}
        {all.length > shown.length && `; the first ${MOST_BARS} are drawn`}.
      </p>
      <table class="d-table">
        <thead>
          <tr>
            <th scope="col">channel</th>
            <th scope="col">fp32 range</th>
            <th scope="col">quantized range</th>
            <th scope="col">total SQNR, dB</th>
          </tr>
        </thead>
        <tbody>
          {shown.slice(0, LISTED).map((channel) => (
            <tr key={channel.index}>
              <th scope="row">
                {channel.index} {channel.isOutlier && <strong class="verdict bad">outlier</strong>}
              </th>
              <td>{between(channel.min, channel.max)}</td>
              <td>{between(channel.qMin, channel.qMax)}</td>
              <td>{formatNumber(channel.sqnr, "dB")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function between(low: number, high: number): string {
  return `${formatNumber(low)} … ${formatNumber(high)}`;
}

function sentence({ index, min, max, sqnr, isOutlier }: Channel): string {
  return `channel ${index}${isOutlier ? " (outlier)" : ""}: ${between(min, max)}, ${formatNumber(sqnr, "dB")} dB`;
}
