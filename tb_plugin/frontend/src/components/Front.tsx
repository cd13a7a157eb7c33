import type { Tradeoff } from "../trials.ts";
import type { PlotScale } from "./Plot.tsx";

/** The Pareto front of a tradeoff as a line, and where fp32 is. */
export function Front({ of: { points, fp32, front }, x, y }: { of: Tradeoff; x: PlotScale; y: PlotScale }) {
  const path = front.map((at, i) => `${i ? "L" : "M"}${x(points[at]!.x)} ${y(points[at]!.y)}`).join("");
  return (
    <>
      <path class="trials-front" d={path} />
      {fp32 && (
        <g class="trials-fp32" transform={`translate(${x(fp32.x)} ${y(fp32.y)})`}>
          <rect x={-4.5} y={-4.5} width={9} height={9} />
          <text y={-9} text-anchor="middle">
            fp32
          </text>
        </g>
      )}
    </>
  );
}
