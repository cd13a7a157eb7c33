// Which stretch of the timeline is in sight, and what brings another one there: buttons, keys, the pointer.

import { useEffect, useRef, useState } from "preact/hooks";
import { type Lane, moved, spanAt, type Window, zoomed } from "../../timeline.ts";
import { GUTTER, laneHeight, timeAt } from "./draw.ts";

const DOUBLE_CLICK_MS = 260;
const CLICK_PX = 4;
const STEP = 0.75;

export interface Sight {
  shown: Window;
  show: (next: Window | ((now: Window) => Window)) => void;
  whole: Window;
  zoomIn: () => void;
  zoomOut: () => void;
  /** By a share of what is in sight; to the left if negative. */
  move: (share: number) => void;
  all: () => void;
}

export function useSight(whole: Window): Sight {
  const [shown, show] = useState(whole);
  const zoom = (factor: number) => show((now) => zoomed(now, (now.from + now.to) / 2, factor, whole));
  return {
    shown,
    show,
    whole,
    zoomIn: () => zoom(STEP),
    zoomOut: () => zoom(1 / STEP),
    move: (share) => show((now) => moved(now, share * (now.to - now.from), whole)),
    all: () => show(whole),
  };
}

export function onKey(event: KeyboardEvent, { zoomIn, zoomOut, move, all }: Sight): void {
  const actions: Record<string, () => void> = {
    "+": zoomIn,
    "=": zoomIn,
    "-": zoomOut,
    ArrowLeft: () => move(-0.15),
    ArrowRight: () => move(0.15),
    "0": all,
  };
  const act = event.ctrlKey || event.metaKey ? undefined : actions[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

/** The span below the pointer. */
export interface Hit {
  lane: Lane;
  span: number;
  x: number;
  y: number;
}

/** Wheel zooms, dragging moves, a click opens, a double-click shows everything again. */
export function usePointer(lanes: Lane[], width: number, sight: Sight, onOpen: (row: number) => void) {
  const { shown, show, whole } = sight;
  const [hit, setHit] = useState<Hit | null>(null);
  const drag = useRef<{ x: number; window: Window; moved: boolean } | null>(null);
  const waiting = useRef(0);
  useEffect(() => () => clearTimeout(waiting.current), []);
  const hitAt = (event: MouseEvent): Hit | null => {
    const lane = lanes[Math.floor(event.offsetY / laneHeight(lanes.length))];
    if (!lane || event.offsetX < GUTTER) return null;
    const slack = (2 / (width - GUTTER)) * (shown.to - shown.from);
    const span = spanAt(lane, timeAt(event.offsetX, shown, width), slack);
    return span < 0 ? null : { lane, span, x: event.offsetX, y: event.offsetY };
  };
  const listeners = {
    // The page would scroll otherwise. Listeners on an element, unlike those on the document, may prevent it.
    onWheel: (event: WheelEvent) => {
      event.preventDefault();
      setHit(null);
      const by = Math.max(-100, Math.min(100, event.deltaY));
      show((now) => zoomed(now, timeAt(Math.max(GUTTER, event.offsetX), now, width), Math.exp(by / 300), whole));
    },
    onPointerDown: (event: PointerEvent) => {
      (event.currentTarget as Element).setPointerCapture(event.pointerId);
      drag.current = { x: event.offsetX, window: shown, moved: false };
    },
    onPointerMove: (event: PointerEvent) => {
      const from = drag.current;
      if (!from) return setHit(hitAt(event));
      if (Math.abs(event.offsetX - from.x) < CLICK_PX && !from.moved) return;
      from.moved = true;
      setHit(null);
      const perPx = (from.window.to - from.window.from) / Math.max(1, width - GUTTER);
      show(moved(from.window, (from.x - event.offsetX) * perPx, whole));
    },
    onPointerUp: (event: PointerEvent) => {
      const found = drag.current?.moved ? null : hitAt(event);
      drag.current = null;
      clearTimeout(waiting.current);
      const row = found?.lane.rows[found.span];
      // A second click makes it a double-click.
      if (row !== undefined) waiting.current = window.setTimeout(() => onOpen(row), DOUBLE_CLICK_MS);
    },
    onPointerCancel: () => {
      drag.current = null;
    },
    onPointerLeave: () => setHit(null),
    onDblClick: () => {
      clearTimeout(waiting.current);
      sight.all();
    },
  };
  return { hit, listeners };
}
