// How the picture follows the pointer, and the size of the place that it has.

import { useComputed } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { Op } from "./group.ts";
import { camera, pan, resized, screen } from "./model.ts";
import { type Box, contains, sightOf } from "./picture.ts";

const DRAG_FROM = 4;

/** What is in sight and a screen around it, as long as the camera stays inside. */
export function useSight(): Box {
  const last = useRef<{ box: Box; k: number } | null>(null);
  return useComputed(() => {
    const { k } = camera.value;
    const isFar = last.current && (k > 1.6 * last.current.k || k < 0.6 * last.current.k);
    if (!last.current || isFar || !contains(last.current.box, sightOf(camera.value, screen.value))) {
      last.current = { box: sightOf(camera.value, screen.value, 0.6), k };
    }
    return last.current.box;
  }).value;
}

/** Dragging anywhere moves the picture; a press that does not move stays a click. */
export function useDrag() {
  const from = useRef<{ x: number; y: number; isMoving: boolean } | null>(null);
  return {
    onPointerDown: (event: PointerEvent) => {
      if (event.button === 0) from.current = { x: event.clientX, y: event.clientY, isMoving: false };
    },
    onPointerMove: (event: PointerEvent) => {
      const start = from.current;
      if (!start) return;
      const dx = event.clientX - start.x;
      const dy = event.clientY - start.y;
      if (!start.isMoving && Math.hypot(dx, dy) < DRAG_FROM) return;
      if (!start.isMoving) (event.currentTarget as Element).setPointerCapture(event.pointerId);
      from.current = { x: event.clientX, y: event.clientY, isMoving: true };
      pan(dx, dy);
    },
    onPointerUp: () => {
      from.current = null;
    },
    onPointerCancel: () => {
      from.current = null;
    },
  };
}

/** Follows the size of the place that the picture has; the selected op stays in sight when a drawer opens. */
export function useScreen(selected: Op | undefined) {
  const place = useRef<HTMLDivElement>(null);
  const look = () => {
    if (place.current) resized(sizeOf(place.current), selected);
  };
  const latest = useRef(look);
  latest.current = look;
  useLayoutEffect(() => {
    latest.current();
    const watch = new ResizeObserver(() => latest.current());
    watch.observe(place.current!);
    return () => watch.disconnect();
  }, []);
  // On narrow windows the drawer lies over the picture, which then keeps its size.
  useEffect(look, [selected]);
  return place;
}

/** Without what something beside the main part covers of it. */
function sizeOf(place: HTMLElement) {
  const { left, width, height } = place.getBoundingClientRect();
  const beside = place.closest("main")?.nextElementSibling?.getBoundingClientRect();
  const free = beside?.width ? Math.min(width, beside.left - left) : width;
  return { width: Math.max(0, free), height };
}
