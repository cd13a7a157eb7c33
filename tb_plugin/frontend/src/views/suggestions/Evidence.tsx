// The numbers and the channels that a suggestion rests on.

import { explained } from "../../components/Tooltip.tsx";
import { described } from "../../configs.ts";
import {
  type Bar,
  type ChannelBars,
  type Chart,
  channelBars,
  chartsOf,
  type Fact,
  factsOf,
  standsOut,
} from "../../evidence.ts";
import { formatNumber, formatRange, plural, withUnit } from "../../format.ts";
import type { Suggestion } from "../../records.ts";
import * as state from "../../state.ts";

export function Evidence({ suggestion, inSight }: { suggestion: Suggestion; inSight: boolean }) {
  const facts = factsOf(suggestion.evidence, described.value);
  const charts = chartsOf(suggestion, described.value);
  return (
    <div class="sg-evidence">
      {facts.length > 0 && (
        <dl class="sg-facts" aria-label="Evidence">
          {facts.map((fact) => (
            <NumberFact key={fact.key} fact={fact} />
          ))}
        </dl>
      )}
      {charts.map((chart) => (
        <div key={chart.role} class="sg-chart">
          {inSight && <Channels chart={chart} />}
        </div>
      ))}
    </div>
  );
}

function NumberFact({ fact }: { fact: Fact }) {
  const { label, value, unit, normal, help, odd } = fact;
  const range = normal && `normal: ${normal[1] === 0 ? "none" : formatRange(normal, unit)}`;
  const explanation = help && (
    <>
      <strong>{label}</strong>
      <p>{help}</p>
      {range && <p class="muted">{range}</p>}
    </>
  );
  return (
    <div class="sg-fact" title={help ? undefined : fact.key} {...(explanation ? explained(explanation) : {})}>
      <dt>{label}</dt>
      <dd class={odd ? "sg-odd" : ""}>
        {typeof value === "number" ? times(value, unit) : value}
        {odd && <span aria-hidden="true"> ⚠</span>}
      </dd>
      <dd class="sg-normal">{range ?? "\u00a0"}</dd>
    </div>
  );
}

function times(value: number, unit: string): string {
  return unit === "ratio" ? `${formatNumber(value, unit)} ×` : withUnit(value, unit);
}

const WIDTH = 380;
const HEIGHT = 104;
const TOP = 14;
const BOTTOM = 16;
const LEFT = 46;
const MOST_BARS = 160;

function Channels({ chart }: { chart: Chart }) {
  const marked = new Set(chart.channels);
  for (const op of chart.ops) {
    const found = state.channels(op);
    if (found.state === "loading") return <p class="muted">Loading the channels of {op}…</p>;
    const row = found.state === "ready" && found.value.find((one) => one.role === chart.role);
    const bars = row && channelBars(row, marked, MOST_BARS);
    if (bars && standsOut(bars)) return <Strip op={op} role={chart.role} made={bars} marks={marked.size} />;
  }
  return <p class="muted">No channels that show this were logged for {chart.ops.join(", ")}.</p>;
}

/** Reach of each channel, on a logarithmic scale: an outlier would otherwise leave nothing of the others. */
function Strip({ op, role, made, marks }: { op: string; role: Chart["role"]; made: ChannelBars; marks: number }) {
  const { bars, median, largest, smallest, count } = made;
  // One channel that is almost zero would make all others look alike.
  const floor = Math.max(smallest, median / 30);
  const from = Math.log(floor / 2);
  const span = Math.log(largest * 1.2) - from;
  const y = (value: number) =>
    HEIGHT - BOTTOM - ((Math.log(Math.max(value, floor / 1.8)) - from) / span) * (HEIGHT - TOP - BOTTOM);
  const step = (WIDTH - LEFT) / bars.length;
  const what = role === "weight" ? "Weight channels" : "Channels of the output";
  const outliers = marks ? `, ${plural(marks, "outlier")} marked` : "";
  const summary = `${what} of ${op}: the largest reaches ${formatNumber(largest)}, the median of ${count} channels ${formatNumber(median)}${outliers}`;
  return (
    <figure class="sg-strip">
      <svg role="img" aria-label={summary} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT}>
        {[largest, median].map((value, i) => (
          <text key={i === 0 ? "largest" : "median"} x={LEFT - 5} y={y(value)} dy="0.32em" text-anchor="end">
            {formatNumber(value)}
          </text>
        ))}
        {bars.map((bar, i) => (
          <g key={bar.from} class={bar.marked ? "sg-outlier" : "sg-bar"}>
            <title>{aboutBar(bar, median)}</title>
            {bar.reach > 0 && (
              <rect
                x={LEFT + i * step}
                width={Math.max(0.6, step - (step > 3 ? 1 : 0))}
                y={y(bar.reach)}
                height={HEIGHT - BOTTOM - y(bar.reach)}
              />
            )}
            {bar.marked && <path d={`M${LEFT + (i + 0.5) * step - 4} 2h8l-4 7z`} />}
          </g>
        ))}
        <line class="sg-median" x1={LEFT} x2={WIDTH} y1={y(median)} y2={y(median)} />
        <text x={LEFT} y={HEIGHT - 3}>
          channel 0
        </text>
        <text x={WIDTH} y={HEIGHT - 3} text-anchor="end">
          {count - 1}
        </text>
      </svg>
      <figcaption class="muted">
        {what} of {op}: largest magnitude of each, logarithmic; the line is the median
        {marks > 0 && ", ▼ an outlier"}
      </figcaption>
    </figure>
  );
}

function aboutBar(bar: Bar, median: number): string {
  const which = bar.to - bar.from > 1 ? `channels ${bar.from} to ${bar.to - 1}: up to` : `channel ${bar.from}:`;
  const sqnr = Number.isNaN(bar.sqnrDb) ? "" : `, SQNR ${bar.sqnrDb.toFixed(1)} dB`;
  return `${which} ${formatNumber(bar.reach)}, ${formatNumber(bar.reach / median)} times the median${sqnr}`;
}
