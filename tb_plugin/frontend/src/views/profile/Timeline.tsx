// One run of each model as spans in time. The table has the same ops for people who do not see or point.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { useWidth } from "../../components/useWidth.ts";
import { formatTime, plural } from "../../format.ts";
import { fusedText, OUTSIDE } from "../../profile.ts";
import type { ProfileRow } from "../../records.ts";
import { dark } from "../../tensorboard.ts";
import { colourIndex, type Lane, lanesOf, moved, spanAt, type Window, wholeOf, zoomed } from "../../timeline.ts";
import { GUTTER, heightOf, laneHeight, MOST_COLOURS, paint, paletteOf, timeAt } from "./draw.ts";

interface Hit {
  lane: Lane;
  span: number;
  x: number;
  y: number;
}

const DOUBLE_CLICK_MS = 260;
const CLICK_PX = 4;
const STEP = 0.75;

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
  const colours = useMemo(() => colourIndex(rows, MOST_COLOURS), [rows]);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [box, width] = useWidth(800, 200);
  const [shown, setShown] = useState(whole);
  const [hit, setHit] = useState<Hit | null>(null);
  const drag = useRef<{ x: number; window: Window; moved: boolean } | null>(null);
  const waiting = useRef(0);
  const nameOf = (row: number) => rows[row]!.op || OUTSIDE;

  useLayoutEffect(() => {
    if (!canvas.current) return;
    const colourOf = (row: number) => colours.get(rows[row]!.type ?? "") ?? MOST_COLOURS;
    const hovered = hit ? hit.lane.rows[hit.span] : -1;
    const isChosen = (row: number) => row === hovered || row === chosen;
    paint(canvas.current, { lanes, window: shown, width, dark: dark.value, colourOf, nameOf, isChosen });
  });
  useEffect(() => () => clearTimeout(waiting.current), []);

  const zoom = (factor: number) => setShown((now) => zoomed(now, (now.from + now.to) / 2, factor, whole));
  const move = (share: number) => setShown((now) => moved(now, share * (now.to - now.from), whole));
  const actions: Record<string, () => void> = {
    "+": () => zoom(STEP),
    "=": () => zoom(STEP),
    "-": () => zoom(1 / STEP),
    ArrowLeft: () => move(-0.15),
    ArrowRight: () => move(0.15),
    "0": () => setShown(whole),
  };
  const hitAt = (event: MouseEvent): Hit | null => {
    const lane = lanes[Math.floor(event.offsetY / laneHeight(lanes.length))];
    if (!lane || event.offsetX < GUTTER) return null;
    const slack = (2 / (width - GUTTER)) * (shown.to - shown.from);
    const span = spanAt(lane, timeAt(event.offsetX, shown, width), slack);
    return span < 0 ? null : { lane, span, x: event.offsetX, y: event.offsetY };
  };
  const onWheel = (event: WheelEvent) => {
    event.preventDefault();
    setHit(null);
    const by = Math.max(-100, Math.min(100, event.deltaY));
    setShown((now) => zoomed(now, timeAt(Math.max(GUTTER, event.offsetX), now, width), Math.exp(by / 300), whole));
  };
  const onPointerMove = (event: PointerEvent) => {
    const from = drag.current;
    if (!from) return setHit(hitAt(event));
    if (Math.abs(event.offsetX - from.x) < CLICK_PX && !from.moved) return;
    from.moved = true;
    setHit(null);
    const perPx = (from.window.to - from.window.from) / Math.max(1, width - GUTTER);
    setShown(moved(from.window, (from.x - event.offsetX) * perPx, whole));
  };
  const onPointerUp = (event: PointerEvent) => {
    const found = drag.current?.moved ? null : hitAt(event);
    drag.current = null;
    clearTimeout(waiting.current);
    const row = found?.lane.rows[found.span];
    // A second click makes it a double-click, which shows everything again.
    if (row !== undefined) waiting.current = window.setTimeout(() => onOpen(row), DOUBLE_CLICK_MS);
  };

  return (
    <section class="pf-timeline" aria-label="Timeline of one run">
      <div class="pf-timeline-bar">
        <h2>Timeline</h2>
        <TypeLegend colours={colours} />
        <span class="spacer" />
        <span class="muted">
          {formatTime(shown.from)} to {formatTime(shown.to)}
        </span>
        <span class="pf-zoom">
          <button type="button" class="icon" aria-label="Zoom in" title="Zoom in (+)" onClick={() => zoom(STEP)}>
            +
          </button>
          <button type="button" class="icon" aria-label="Zoom out" title="Zoom out (-)" onClick={() => zoom(1 / STEP)}>
            −
          </button>
          <button
            type="button"
            class="icon"
            aria-label="Earlier"
            title="Earlier (arrow left)"
            onClick={() => move(-0.5)}
          >
            ←
          </button>
          <button type="button" class="icon" aria-label="Later" title="Later (arrow right)" onClick={() => move(0.5)}>
            →
          </button>
          <button type="button" class="icon" title="Show all (0 or double-click)" onClick={() => setShown(whole)}>
            All
          </button>
        </span>
      </div>
      <div
        class="pf-canvas"
        ref={box}
        role="group"
        aria-label="Timeline: + and - zoom, the arrow keys move, 0 shows all"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: its keys need the focus
        tabIndex={0}
        onKeyDown={(event) => {
          const act = event.ctrlKey || event.metaKey ? undefined : actions[event.key];
          if (!act) return;
          event.preventDefault();
          act();
        }}
      >
        <canvas
          ref={canvas}
          role="img"
          aria-label="Timeline"
          aria-describedby="pf-timeline-about"
          style={{ width: `${width}px`, height: `${heightOf(lanes.length)}px`, cursor: hit ? "pointer" : "grab" }}
          // The page would scroll otherwise. Listeners on an element, unlike those on the document, may prevent it.
          onWheel={onWheel}
          onPointerDown={(event) => {
            event.currentTarget.setPointerCapture(event.pointerId);
            drag.current = { x: event.offsetX, window: shown, moved: false };
          }}
          onPointerMove={onPointerMove}
          onPointerUp={onPointerUp}
          onPointerCancel={() => {
            drag.current = null;
          }}
          onPointerLeave={() => setHit(null)}
          onDblClick={() => {
            clearTimeout(waiting.current);
            setShown(whole);
          }}
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

function TypeLegend({ colours }: { colours: ReadonlyMap<string, number> }) {
  const palette = paletteOf(dark.value);
  const own = [...colours].filter(([, i]) => i < MOST_COLOURS);
  const others = colours.size - own.length;
  const items = [
    ...own.map(([type, i]) => ({ label: type || "unknown type", i })),
    ...(others ? [{ label: plural(others, "other type"), i: MOST_COLOURS }] : []),
  ];
  return (
    <ul class="pf-legend" aria-label="Colours of the types">
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
