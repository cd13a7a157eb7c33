// fp32 and quantized values over each other, with the grid that the quantized ones lie on and where it ends.

import { scaleLinear, scaleSymlog } from "d3-scale";
import { formatNumber } from "../format.ts";
import { extent, gridLines, rebin } from "../histogram.ts";
import type { HistogramRow } from "../records.ts";
import { type Axis, Plot, type PlotScale } from "./Plot.tsx";

interface Scales {
  logX: boolean;
  logY: boolean;
}

const CELLS = 140;
const HEIGHT = 190;
const LEAST_SHARE = 1e-7;

interface Props extends Scales {
  name: string;
  row: HistogramRow;
  width: number;
  outside: number | null;
}

export function HistogramPlot({ name, row, width, outside, logX, logY }: Props) {
  const ends = [extent(row.reference, row.top), extent(row.quantized, row.top), row.limits ?? []].flat();
  const x = axisX([Math.min(...ends), Math.max(...ends)], logX, row.step ?? null, "value");
  const cells = cellsOf(x);
  const reference = rebin(row.reference, row.top, cells);
  const quantized = rebin(row.quantized, row.top, cells);
  const y = axisY([...reference, ...quantized], logY);
  const share = outside === null ? "" : `, ${formatNumber(outside, "share")} of the fp32 values lie outside`;
  const described = row.limits
    ? `fp32 and quantized values; the quantized type holds ${row.limits.map((limit) => formatNumber(limit)).join(" to ")}${share}`
    : "fp32 and quantized values; no fixed range";
  return (
    <Plot name={name} description={described} x={x} y={y} width={width} height={HEIGHT}>
      {(across, up) => (
        <>
          {gridLines(row, 300).map((at) => (
            <line key={at} class="d-grid" x1={across(at)} x2={across(at)} y1={up.range()[0]} y2={up.range()[1]} />
          ))}
          <path class="d-fp32" d={outline(cells, reference, across, up)} />
          <path class="d-int8" d={outline(cells, quantized, across, up)} />
          {row.limits?.map((at, i) => (
            <g key={i === 0 ? "low" : "high"} class="d-limit">
              <line x1={across(at)} x2={across(at)} y1={up.range()[0]} y2={up.range()[1]} />
            </g>
          ))}
        </>
      )}
    </Plot>
  );
}

export function ErrorPlot({ name, row, width, logX, logY }: Omit<Props, "outside">) {
  const [low, high] = extent(row.error, row.error_top);
  const half = Math.max(Math.abs(low), Math.abs(high));
  const x = axisX([-half, half], logX, row.step ? row.step / 8 : null, "quantized − fp32");
  const cells = cellsOf(x);
  const shares = rebin(row.error, row.error_top, cells);
  return (
    <Plot
      name={name}
      description="Quantized minus fp32 values"
      x={x}
      y={axisY([...shares], logY)}
      width={width}
      height={150}
    >
      {(across, up) => (
        <>
          {row.step && (
            <rect
              class="d-rounding"
              x={across(-row.step / 2)}
              width={Math.max(0, across(row.step / 2) - across(-row.step / 2))}
              y={up.range()[1]}
              height={up.range()[0]! - up.range()[1]!}
            />
          )}
          <path class="d-error" d={outline(cells, shares, across, up)} />
        </>
      )}
    </Plot>
  );
}

function axisX([low, high]: [number, number], log: boolean, step: number | null, label: string): Axis {
  const reach = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const constant = Math.max(reach / 1e5, step ? step / 2 : reach / 256);
  return { domain: [low, high], kind: log ? "symlog" : "linear", constant, label };
}

function axisY(shares: number[], log: boolean): Axis {
  const largest = Math.max(...shares, LEAST_SHARE);
  const least = Math.max(LEAST_SHARE, Math.min(...shares.filter((share) => share > 0), largest / 10) / 2);
  const domain: [number, number] = log ? [least, largest * 1.3] : [0, largest * 1.05];
  return { domain, kind: log ? "log" : "linear", label: "share of values", unit: "share" };
}

/** Cells of equal width on the screen. */
function cellsOf({ domain, kind, constant }: Axis): number[] {
  const scale = (kind === "symlog" ? scaleSymlog().constant(constant!) : scaleLinear())
    .domain(domain)
    .range([0, CELLS]);
  return Array.from({ length: CELLS + 1 }, (_, i) => scale.invert(i) as number);
}

function outline(cells: number[], shares: Float64Array, x: PlotScale, y: PlotScale): string {
  const [floor, ceiling] = y.range() as [number, number];
  const height = (share: number) => (share > 0 ? Math.min(floor, Math.max(ceiling, y(share))) : floor).toFixed(1);
  let path = `M${x(cells[0]!).toFixed(1)} ${floor}`;
  shares.forEach((share, i) => {
    path += `V${height(share)}H${x(cells[i + 1]!).toFixed(1)}`;
  });
  return `${path}V${floor}Z`;
}
