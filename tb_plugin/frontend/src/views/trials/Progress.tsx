// How accuracy went from trial to trial.

import { bestSoFar } from "../../compare.ts";
import { Levels } from "../../components/Levels.tsx";
import type { PlotScale } from "../../components/Plot.tsx";
import { Chart, type Dot } from "../../components/RunChart.tsx";
import { formatScore, plural } from "../../format.ts";
import { comparedKey, judged, nameOfScore, table, upAxis } from "../../trials.ts";

export function Progress() {
  const numbers = new Map(table.value.runs.filter(({ trial }) => trial).map(({ run }, i) => [run, i + 1]));
  const bests = bestSoFar(judged.value.map(({ row }) => table.value.runs[row]!.trial));
  const points = judged.value.map(({ run, accuracy }) => ({ x: numbers.get(run)!, y: accuracy }));
  const dots = judged.value.map(({ run, accuracy }, i): Dot => {
    const { isNew, value } = bests[i]!;
    const text = [
      `${nameOfScore()} ${formatScore(accuracy)}`,
      isNew ? "the best yet" : `best so far ${formatScore(value)}`,
    ];
    return { run, ...points[i]!, marked: isNew, text };
  });
  const steps = (x: PlotScale, y: PlotScale) =>
    points
      .map((point, i) => (i ? `H${x(point.x)}V${y(bests[i]!.value)}` : `M${x(point.x)} ${y(bests[i]!.value)}`))
      .join("");
  const last = bests.at(-1)!;
  return (
    <figure class="trials-chart">
      <figcaption class="trials-line">Progress over trials</figcaption>
      <Chart
        name="Progress over trials"
        description={`${plural(points.length, "trial")}; the best is ${formatScore(last.value)}`}
        x={{
          domain: [0.5, numbers.size + 0.5],
          label: "Trial, in the order of the runs",
          ticks: Math.min(5, numbers.size),
        }}
        y={upAxis.value}
        dots={dots}
      >
        {(x, y) => (
          <>
            <Levels x={x} y={y} />
            <path class="trials-best" d={steps(x, y)} />
          </>
        )}
      </Chart>
      <p class="muted trials-key">
        <span class="trials-diamond" aria-hidden="true" /> the best yet; the line is the best so far.
        {comparedKey()}
      </p>
    </figure>
  );
}
