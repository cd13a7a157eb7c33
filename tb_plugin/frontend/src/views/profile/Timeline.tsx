// One run of each model as spans in time. The table has the same ops for people who do not see or point.

import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { useWidth } from "../../components/useWidth.ts";
import { formatTime, plural } from "../../format.ts";
import { fusedText, OUTSIDE } from "../../profile.ts";
import type { ProfileRow } from "../../records.ts";
import { dark } from "../../tensorboard.ts";
import { colorIndex, type Lane, lanesOf, wholeOf } from "../../timeline.ts";
import { heightOf, MOST_COLORS, paint, paletteOf } from "./draw.ts";
import { type Hit, onKey, type Sight, usePointer, useSight } from "./sight.ts";

interface Props {
  rows: ProfileRow[];
  /** The row with the chosen op's time; -1 if none has it. */
  chosen: number;
  onOpen: (row: number) => void;
}

export function Timeline({ rows, chosen, onOpen }: Props) {
  const times = useRef(0);
  const lanes = useMemo(() => {
    times.current++;
    return lanesOf(rows);
  }, [rows]);
  if (!lanes.length)
    return <p class="pf-no-spans muted">No spans were logged with this profile, so there is no timeline.</p>;
  // Neither the stretch in sight nor the span below the pointer means anything in other rows.
  return <Lanes key={times.current} rows={rows} lanes={lanes} chosen={chosen} onOpen={onOpen} />;
}

function Lanes({ rows, lanes, chosen, onOpen }: Props & { lanes: Lane[] }) {
  const whole = useMemo(() => wholeOf(lanes), [lanes]);
  const colors = useMemo(() => colorIndex(rows, MOST_COLORS), [rows]);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [box, width] = useWidth(800, 200);
  const sight = useSight(whole);
  const { hit, listeners } = usePointer(lanes, width, sight, onOpen);

  useLayoutEffect(() => {
    if (!canvas.current) return;
    const nameOf = (row: number) => rows[row]!.op || OUTSIDE;
    const colorOf = (row: number) => colors.get(rows[row]!.type ?? "") ?? MOST_COLORS;
    const hovered = hit ? hit.lane.rows[hit.span] : -1;
    const isChosen = (row: number) => row === hovered || row === chosen;
    paint(canvas.current, { lanes, window: sight.shown, width, dark: dark.value, colorOf, nameOf, isChosen });
  });

  return (
    <section class="pf-timeline" aria-label="Timeline of one run">
      <div class="pf-timeline-bar">
        <h2>Timeline</h2>
        <TypeLegend colors={colors} />
        <span class="spacer" />
        <span class="muted">
          {formatTime(sight.shown.from)} to {formatTime(sight.shown.to)}
        </span>
        <ZoomButtons sight={sight} />
      </div>
      <div
        class="pf-canvas"
        ref={box}
        role="group"
        aria-label="Timeline: + and - zoom, the arrow keys move, 0 shows all"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: its keys need the focus
        tabIndex={0}
        onKeyDown={(event) => onKey(event, sight)}
      >
        <canvas
          ref={canvas}
          role="img"
          aria-label="Timeline"
          aria-describedby="pf-timeline-about"
          style={{ width: `${width}px`, height: `${heightOf(lanes.length)}px`, cursor: hit ? "pointer" : "grab" }}
          {...listeners}
        />
        {hit && <Tip hit={hit} row={rows[hit.lane.rows[hit.span]!]!} width={width} />}
      </div>
      <p id="pf-timeline-about" class="muted">
        {new Set(lanes.map(({ model }) => model)).size > 1 ? "One run of each model" : "One run"} from its start:{" "}
        {plural(
          lanes.reduce((sum, lane) => sum + lane.starts.length, 0),
          "span",
        )}{" "}
        over {formatTime(whole.to - whole.from)}. Wheel or + and - zoom, drag or arrow keys move, double-click or 0
        shows all; the table below has the same ops.
      </p>
    </section>
  );
}

function ZoomButtons({ sight }: { sight: Sight }) {
  const button = (sign: string, label: string, key: string, act: () => void) => (
    <button type="button" class="icon" aria-label={label} title={`${label} (${key})`} onClick={act}>
      {sign}
    </button>
  );
  return (
    <span class="pf-zoom">
      {button("+", "Zoom in", "+", sight.zoomIn)}
      {button("−", "Zoom out", "-", sight.zoomOut)}
      {button("←", "Earlier", "arrow left", () => sight.move(-0.5))}
      {button("→", "Later", "arrow right", () => sight.move(0.5))}
      <button type="button" class="icon" title="Show all (0 or double-click)" onClick={sight.all}>
        All
      </button>
    </span>
  );
}

function TypeLegend({ colors }: { colors: ReadonlyMap<string, number> }) {
  const palette = paletteOf(dark.value);
  const own = [...colors].filter(([, i]) => i < MOST_COLORS);
  const others = colors.size - own.length;
  const items = [
    ...own.map(([type, i]) => ({ label: type || "unknown type", i })),
    ...(others ? [{ label: plural(others, "other type"), i: MOST_COLORS }] : []),
  ];
  return (
    <ul class="pf-legend" aria-label="Colors of the types">
      {items.map(({ label, i }) => (
        <li key={label}>
          <span class="pf-swatch" style={{ background: palette[i]! }} aria-hidden="true" />
          {label}
        </li>
      ))}
    </ul>
  );
}

function Tip({ hit, row, width }: { hit: Hit; row: ProfileRow; width: number }) {
  const { lane, span, x, y } = hit;
  const place = x > width / 2 ? { right: `${width - x + 10}px` } : { left: `${x + 10}px` };
  return (
    <div class="pf-tip" role="tooltip" style={{ ...place, top: `${y + 14}px` }}>
      <strong>{row.op || OUTSIDE}</strong>
      {row.ops?.length ? ` ${fusedText(row.ops)}` : ""}
      <br />
      {row.type && `${row.type}, `}
      {lane.model} thread {lane.thread}
      <br />
      starts at {formatTime(lane.starts[span]!)}, takes {formatTime(lane.durations[span]!)}
    </div>
  );
}
