// A plot with one dot for each run, which can be pressed to choose that run.

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import * as state from "../state.ts";
import { type Axis, Plot, type PlotScale } from "./Plot.tsx";
import { explained } from "./Tooltip.tsx";
import { useWidth } from "./useWidth.ts";

export interface Dot {
  run: string;
  x: number;
  y: number;
  marked: boolean;
  text: string[];
}

interface Props {
  name: string;
  description: string;
  x: Axis;
  y: Axis;
  dots: Dot[];
  height?: number;
  children: (x: PlotScale, y: PlotScale) => ComponentChildren;
}

const HEIGHT = 250;
/** Small, so that neighbors do not cover each other. */
const HIT = 14;

export function Chart({ dots, children, height = HEIGHT, ...plot }: Props) {
  const [box, width] = useWidth(380, 240);
  return (
    <div class="trials-plot" ref={box}>
      <Plot
        {...plot}
        width={width}
        height={height}
        overlay={(x, y) => <Buttons name={plot.name} dots={dots} x={x} y={y} />}
      >
        {(x, y) => (
          <>
            {children(x, y)}
            {dots.map((dot) => (
              <Mark key={dot.run} dot={dot} x={x(dot.x)} y={y(dot.y)} />
            ))}
          </>
        )}
      </Plot>
    </div>
  );
}

function Mark({ dot, x, y }: { dot: Dot; x: number; y: number }) {
  const isCompared = state.compared.value.includes(dot.run);
  const kind = `${dot.marked ? "marked" : ""} ${isCompared ? "compared" : ""}`;
  return (
    <g transform={`translate(${x} ${y})`} class={`trials-dot ${kind}`}>
      {dot.run === state.run.value && <circle class="ring" r={8} />}
      {dot.marked ? <path d="M0-5.5 5.5 0 0 5.5-5.5 0Z" /> : <circle r={3.5} />}
    </g>
  );
}

/** One of them is a tab stop, arrows go to the others: a hundred tab stops would be in the way. */
function Buttons({ name, dots, x, y }: { name: string; dots: Dot[]; x: PlotScale; y: PlotScale }) {
  const group = useRef<HTMLDivElement>(null);
  const stop = Math.max(
    0,
    dots.findIndex(({ run }) => run === state.run.value),
  );
  const [stopAt, setStopAt] = useState(-1);
  const current = stopAt >= 0 && stopAt < dots.length ? stopAt : stop;
  const onKey = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = (current + by + dots.length) % dots.length;
    setStopAt(next);
    group.current?.querySelectorAll("button")[next]?.focus();
  };
  return (
    <div role="group" aria-label={`Runs in ${name}`} ref={group} onKeyDown={onKey}>
      {dots.map((dot, i) => (
        <button
          key={dot.run}
          type="button"
          class="trials-hit"
          aria-label={`${dot.run}: ${dot.text.join(", ")}`}
          aria-current={dot.run === state.run.value ? "true" : undefined}
          tabIndex={i === current ? 0 : -1}
          style={{ left: `${x(dot.x) - HIT / 2}px`, top: `${y(dot.y) - HIT / 2}px` }}
          onClick={() => state.chooseRun(dot.run)}
          {...explained(<Told dot={dot} />)}
        />
      ))}
    </div>
  );
}

function Told({ dot }: { dot: Dot }) {
  return (
    <>
      <strong>{dot.run}</strong>
      {dot.text.map((line) => (
        <div key={line}>{line}</div>
      ))}
      <div class="muted">press to choose this run</div>
    </>
  );
}
