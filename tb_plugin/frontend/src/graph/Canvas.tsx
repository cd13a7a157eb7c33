// The picture itself: only what is in sight is in the document; moving and zooming change one transform.

import { useSignalEffect } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";
import { hideTooltip } from "../components/Tooltip.tsx";
import { Edges } from "./Edges.tsx";
import { GraphItem, type Role, Speck } from "./GraphItem.tsx";
import { type Item, type Op, seenAs } from "./group.ts";
import { onKey } from "./keys.ts";
import { active, camera, type Picture, zoom } from "./model.ts";
import type { Paint } from "./paint.ts";
import { type Box, overlap } from "./picture.ts";
import { useDrag, useSight } from "./pointer.ts";

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
