// The picture itself: only what is in sight is in the document; moving and zooming change one transform.

import { useComputed, useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { hideTooltip } from "../components/Tooltip.tsx";
import { Edges } from "./Edges.tsx";
import { GraphItem, type Role, Speck } from "./GraphItem.tsx";
import { type Item, type Op, seenAs } from "./group.ts";
import { onKey } from "./keys.ts";
import { active, camera, type Picture, pan, resized, screen, zoom } from "./model.ts";
import type { Paint } from "./paint.ts";
import { type Box, contains, overlap, sightOf } from "./picture.ts";

const DRAG_FROM = 4;
const TEXT_FROM = 0.32;
/** So many nodes in sight are too small to read; full ones would take a third of a second to draw. */
const CROWD = 400;

interface Props {
  shown: Picture;
  paint: Paint | null;
  selected: Op | undefined;
  onChoose: (item: Item) => void;
}

export function Canvas({ shown, paint, selected, onChoose }: Props) {
  const world = useRef<HTMLDivElement>(null);
  const drag = useDrag();
  const sight = useSight();
  const roles = useMemo(() => rolesOf(shown, selected), [shown, selected]);
  useSignalEffect(() => {
    const { x, y, k } = camera.value;
    const style = world.current?.style;
    if (!style) return;
    style.transform = `translate(${x}px, ${y}px) scale(${k})`;
    // Lines and frames stay visible from afar.
    style.setProperty("--graph-line", `${Math.max(1.3, 0.7 / k)}px`);
    world.current?.classList.toggle("far", k < TEXT_FROM);
    hideTooltip();
  });
  const { items } = shown.visible;
  const { boxes, routes } = shown.layout;
  const seen = items.filter((item) => item.id === active.value || overlap(boxes.get(item.id)!, sight));
  const isCrowded = seen.length > CROWD;
  const frames = seen.filter(({ id }) => shown.open.has(id));
  return (
    <div
      class="graph-canvas"
      role="group"
      aria-label="Model graph"
      aria-describedby="graph-keys"
      // biome-ignore lint/a11y/noNoninteractiveTabindex: arrow keys move the picture as scrolling would
      tabIndex={0}
      onKeyDown={(event) => onKey(event, shown)}
      // The page would scroll otherwise. Listeners on an element, unlike those on the document, may prevent it.
      onWheel={(event) => {
        event.preventDefault();
        const box = event.currentTarget.getBoundingClientRect();
        const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 20 : 1;
        zoom(1.0016 ** (-event.deltaY * lines), { x: event.clientX - box.left, y: event.clientY - box.top });
      }}
      {...drag}
    >
      <div class="graph-world" ref={world}>
        {frames.map(({ id }) => (
          <Frame key={id} box={boxes.get(id)!} />
        ))}
        <Edges
          routes={routes}
          sight={sight}
          isCrowded={isCrowded}
          selected={selected && shown.layout.boxes.has(selected.id) ? selected.id : ""}
        />
        {seen.map((item) =>
          isCrowded && item.id !== active.value && !roles.has(item.id) ? (
            <Speck key={item.id} item={item} box={boxes.get(item.id)!} paint={paint} onChoose={onChoose} />
          ) : (
            <GraphItem
              key={item.id}
              item={item}
              box={boxes.get(item.id)!}
              paint={paint}
              role={roles.get(item.id) ?? ""}
              isOpen={shown.open.has(item.id)}
              isActive={item.id === active.value}
              onChoose={onChoose}
            />
          ),
        )}
      </div>
    </div>
  );
}

function Frame({ box }: { box: Box }) {
  const { x, y, width, height } = box;
  return (
    <div
      class="graph-frame"
      style={{ transform: `translate(${x}px, ${y}px)`, width: `${width}px`, height: `${height}px` }}
    />
  );
}

/** What is in sight and a screen around it, as long as the camera stays inside. */
function useSight(): Box {
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
function useDrag() {
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

function rolesOf({ visible, open }: Picture, selected: Op | undefined): Map<string, Role> {
  const roles = new Map<string, Role>();
  if (!selected) return roles;
  for (const { from, to } of visible.edges) {
    if (to.id === selected.id) roles.set(from.id, "producer");
    if (from.id === selected.id) roles.set(to.id, "consumer");
  }
  const item = seenAs(selected, open);
  roles.set(item.id, item === selected ? "selected" : "around");
  return roles;
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
