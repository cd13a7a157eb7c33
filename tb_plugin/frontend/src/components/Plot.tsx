// An SVG chart with axes; what is drawn inside is up to the caller, who gets the two scales.

import { type ScaleContinuousNumeric, scaleLinear, scaleLog, scaleSymlog } from "d3-scale";
import type { ComponentChildren } from "preact";
import { formatNumber } from "../format.ts";

export interface Axis {
  domain: [number, number];
  kind?: "linear" | "log" | "symlog";
  /** Where a symlog axis turns from linear to logarithmic. */
  constant?: number;
  label?: string;
  unit?: string;
  ticks?: number;
}

export type PlotScale = ScaleContinuousNumeric<number, number>;

interface Props {
  /** What the picture is called, such as "Activation histogram". */
  name: string;
  /** What it shows, in a sentence with the main numbers. */
  description?: string;
  x: Axis;
  y: Axis;
  width: number;
  height: number;
  children: (x: PlotScale, y: PlotScale) => ComponentChildren;
  /** Controls on top of the picture: an image may not contain any. Placed in its pixels. */
  overlay?: (x: PlotScale, y: PlotScale) => ComponentChildren;
}

const MARGIN = { left: 64, right: 10, top: 8, bottom: 34 };

export function Plot({ name, description, x, y, width, height, children, overlay }: Props) {
  const across = scaleOf(x, [MARGIN.left, width - MARGIN.right]);
  const up = scaleOf(y, [height - MARGIN.bottom, MARGIN.top]);
  const picture = (
    <svg class="plot" role="img" aria-label={name} width={width} height={height} viewBox={`0 0 ${width} ${height}`}>
      <title>{description ?? name}</title>
      <g class="axis">
        {ticks(across, x, 5).map((tick) => (
          <g key={tick} transform={`translate(${across(tick)} 0)`}>
            <line y1={MARGIN.top} y2={height - MARGIN.bottom} />
            <text y={height - MARGIN.bottom + 14} text-anchor="middle">
              {formatNumber(tick, x.unit)}
            </text>
          </g>
        ))}
        {ticks(up, y, 4).map((tick) => (
          <g key={tick} transform={`translate(0 ${up(tick)})`}>
            <line x1={MARGIN.left} x2={width - MARGIN.right} />
            <text x={MARGIN.left - 6} dy="0.32em" text-anchor="end">
              {formatNumber(tick, y.unit)}
            </text>
          </g>
        ))}
        <text x={(MARGIN.left + width) / 2} y={height - 4} text-anchor="middle" class="axis-label">
          {withUnitLabel(x)}
        </text>
        <text
          transform={`translate(11 ${(height - MARGIN.bottom) / 2}) rotate(-90)`}
          text-anchor="middle"
          class="axis-label"
        >
          {withUnitLabel(y)}
        </text>
      </g>
      {children(across, up)}
    </svg>
  );
  if (!overlay) return picture;
  return (
    <div style={{ position: "relative", width: `${width}px` }}>
      {picture}
      {overlay(across, up)}
    </div>
  );
}

function scaleOf({ domain, kind, constant }: Axis, range: [number, number]): PlotScale {
  const [low, high] = domain[0] === domain[1] ? [domain[0] - 0.5, domain[1] + 0.5] : domain;
  const scale = kind === "log" ? scaleLog() : kind === "symlog" ? scaleSymlog().constant(constant ?? 1) : scaleLinear();
  return scale.domain([low, high]).range(range) as PlotScale;
}

/** Symlog axes get their ticks at powers of ten on both sides, which the library does not do. */
function ticks(scale: PlotScale, axis: Axis, count: number): number[] {
  const wanted = axis.ticks ?? count;
  if (axis.kind === "log") {
    const powers = scale.ticks().filter((tick) => Number.isInteger(Math.round(Math.log10(tick) * 1e6) / 1e6));
    return thinned(powers.length > 1 ? powers : scale.ticks(wanted), wanted + 2);
  }
  if (axis.kind !== "symlog") return scale.ticks(wanted);
  const [low, high] = axis.domain;
  const from = Math.ceil(Math.log10(axis.constant ?? 1));
  const to = Math.floor(Math.log10(Math.max(Math.abs(low), Math.abs(high))));
  const powers = Array.from({ length: Math.max(0, to - from + 1) }, (_, i) => 10 ** (from + i));
  const kept = thinned(powers.reverse(), 3);
  return [...kept.map((power) => -power), 0, ...kept].filter((tick) => tick >= low && tick <= high);
}

function thinned(values: number[], most: number): number[] {
  const every = Math.ceil(values.length / most);
  return values.filter((_, i) => i % every === 0);
}

function withUnitLabel({ label, unit }: Axis): string {
  return [label, unit && !["value", "share", "count", "bytes", "µs"].includes(unit) ? `(${unit})` : ""]
    .filter(Boolean)
    .join(" ");
}
