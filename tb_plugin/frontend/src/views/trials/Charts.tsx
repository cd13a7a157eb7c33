// What accuracy costs, and how it went from trial to trial.

import { computed, signal } from "@preact/signals";
import { bestSoFar, mainObjective, objective, paretoFront } from "../../compare.ts";
import type { Axis, PlotScale } from "../../components/Plot.tsx";
import { formatScore, plural, withUnit } from "../../format.ts";
import { numberAt } from "../../records.ts";
import * as state from "../../state.ts";
import { Chart, type Dot } from "./Chart.tsx";
import { table } from "./picks.ts";

interface Judged {
  run: string;
  row: number;
  accuracy: number;
}

/** Trials that can be drawn: with an accuracy, and all of the same direction. */
const judged = computed((): Judged[] =>
  table.value.runs.flatMap(({ run, trial }, row) =>
    trial?.accuracy != null && (trial.lower_is_better ?? false) === table.value.lower
      ? [{ run, row, accuracy: trial.accuracy }]
      : [],
  ),
);
const lines = computed(() => {
  const trials = judged.value.map(({ row }) => table.value.runs[row]!.trial!);
  const distinct = (values: (number | null | undefined)[]) => [...new Set(values.filter((value) => value != null))];
  return {
    baselines: distinct(trials.map(({ baseline }) => baseline)),
    targets: distinct(trials.map(({ target }) => target)),
  };
});
const upAxis = computed((): Axis => {
  const { baselines, targets } = lines.value;
  const label = table.value.lower ? "Loss, lower is better" : "Accuracy";
  return { domain: padded([...judged.value.map(({ accuracy }) => accuracy), ...baselines, ...targets]), label };
});

const chosenObjective = signal("");
/** Directions that the reader has set, where the key's words mislead. */
const directions = signal<Record<string, "higher" | "lower">>({});

export function Charts() {
  if (!judged.value.length) return null;
  return (
    <div class="trials-charts">
      <Tradeoff />
      <Progress />
    </div>
  );
}

function Tradeoff() {
  const { objectives, columns, lower } = table.value;
  const key = objectives.includes(chosenObjective.value) ? chosenObjective.value : mainObjective(objectives);
  if (!key) return <NoObjective />;
  const { unit, label, better: guessed } = objective(key);
  const better = directions.value[key] ?? guessed;
  const column = columns.get(`objectives.${key}`);
  const drawn = judged.value.filter(({ row }) => Number.isFinite(numberAt(column, row)));
  const points = drawn.map(({ row, accuracy }) => ({ x: numberAt(column, row), y: accuracy }));
  const front = paretoFront(points, better === "lower", lower);
  const onFront = new Set(front);
  const dots = drawn.map(({ run, accuracy }, i): Dot => {
    const text = [`${nameOfScore()} ${formatScore(accuracy)}`, `${label} ${withUnit(points[i]!.x, unit)}`];
    return {
      run,
      ...points[i]!,
      marked: onFront.has(i),
      text: onFront.has(i) ? [...text, "on the Pareto front"] : text,
    };
  });
  const best = front.map((i) => drawn[i]!.run).join(", ");
  return (
    <figure class="trials-chart">
      <figcaption class="trials-line">
        <label>
          Accuracy against{" "}
          <select
            aria-label="Objective"
            value={key}
            onChange={(event) => {
              chosenObjective.value = event.currentTarget.value;
            }}
          >
            {objectives.map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
        <select
          aria-label={`Which ${label} is better`}
          value={better}
          onChange={(event) => {
            directions.value = { ...directions.value, [key]: event.currentTarget.value as "higher" | "lower" };
          }}
        >
          <option value="lower">lower is better</option>
          <option value="higher">higher is better</option>
        </select>
      </figcaption>
      {dots.length ? (
        <Chart
          name={`Accuracy against ${key}`}
          description={`${plural(dots.length, "trial")}; on the Pareto front: ${best}`}
          x={{ domain: padded(points.map(({ x }) => x)), label, unit }}
          y={upAxis.value}
          dots={dots}
        >
          {(x, y) => (
            <>
              <Levels x={x} y={y} {...lines.value} />
              <path
                class="trials-front"
                d={pathOf(
                  front.map((i) => points[i]!),
                  x,
                  y,
                )}
              />
            </>
          )}
        </Chart>
      ) : (
        <p>No trial has both an accuracy and {key}.</p>
      )}
      <p class="muted trials-key">
        <span class="trials-diamond" aria-hidden="true" /> Pareto front: no other trial is better in one without being
        worse in the other.
        {drawn.length < judged.value.length &&
          ` ${plural(judged.value.length - drawn.length, "trial")} without ${key} not drawn.`}
        {comparedKey()}
      </p>
    </figure>
  );
}

function Progress() {
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
            <Levels x={x} y={y} {...lines.value} />
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

/** Baselines and targets; runs of several models may have several of them. */
function Levels({ x, y, baselines, targets }: { x: PlotScale; y: PlotScale; baselines: number[]; targets: number[] }) {
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

function NoObjective() {
  return (
    <div class="trials-chart">
      <h2>No trial has an objective</h2>
      <p>Accuracy can be drawn against latency, size or anything else that a trial logs:</p>
      <pre>{`writer.add_trial(inc_tb.Trial("${state.run.value}", accuracy=0.75,\n    objectives={"latency_ms": 4.2}))`}</pre>
      <p class="muted">The end of the name is the unit: _ms, _us, _s, _mb, _kb, _bytes, _share, _pct.</p>
    </div>
  );
}

function comparedKey(): string {
  return state.compared.value.length ? " Blue: compared." : "";
}

function nameOfScore(): string {
  return table.value.lower ? "loss" : "accuracy";
}

function padded(values: number[]): [number, number] {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const edge = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - edge, high + edge];
}

function pathOf(points: { x: number; y: number }[], x: PlotScale, y: PlotScale): string {
  return points.map((point, i) => `${i ? "L" : "M"}${x(point.x)} ${y(point.y)}`).join("");
}
