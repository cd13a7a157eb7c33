import { formatScore } from "../format.ts";
import { lines } from "../trials.ts";
import type { PlotScale } from "./Plot.tsx";

/** Baselines and targets; runs of several models may have several of them. */
export function Levels({ x, y }: { x: PlotScale; y: PlotScale }) {
  const { baselines, targets } = lines.value;
  const [left, right] = x.range() as [number, number];
  return (
    <g class="trials-levels">
      {baselines.map((value) => (
        <g key={value} class="baseline" transform={`translate(0 ${y(value)})`}>
          <line x1={left} x2={right} />
          <text x={left + 4} y={-4}>
            baseline {formatScore(value)}
          </text>
        </g>
      ))}
      {targets.map((value) => (
        <g key={value} class="target" transform={`translate(0 ${y(value)})`}>
          <line x1={left} x2={right} />
          <text x={right - 2} y={12} text-anchor="end">
            target {formatScore(value)}
          </text>
        </g>
      ))}
    </g>
  );
}
