// The whole picture in the corner, where it is much larger than the screen: what is where, and where one is.

import { useRef } from "preact/hooks";
import { camera, LEGIBLE, lookAt, type Picture, screen } from "./model.ts";
import type { Paint } from "./paint.ts";
import { isVast, mapSize, sightOf } from "./picture.ts";

const MARGIN = 12;

interface Props {
  shown: Picture;
  paint: Paint | null;
}

export function Minimap({ shown, paint }: Props) {
  const map = useRef<SVGSVGElement>(null);
  const isHeld = useRef(false);
  const { layout } = shown;
  if (!layout.width || !isVast(layout, screen.value, LEGIBLE)) return null;
  const { width, height } = mapSize(layout, screen.value);
  const look = (event: PointerEvent) => {
    const box = map.current!.getBoundingClientRect();
    lookAt({
      x: ((event.clientX - box.left) / box.width) * layout.width,
      y: ((event.clientY - box.top) / box.height) * layout.height,
    });
  };
  return (
    <svg
      ref={map}
      class="graph-map"
      role="img"
      aria-label="Map of the graph"
      viewBox={`0 0 ${layout.width} ${layout.height}`}
      preserveAspectRatio="none"
      width={width}
      height={height}
      style={{ left: `${screen.value.width - width - MARGIN}px` }}
      onPointerDown={(event) => {
        isHeld.current = true;
        event.currentTarget.setPointerCapture(event.pointerId);
        look(event);
      }}
      onPointerMove={(event) => isHeld.current && look(event)}
      onPointerUp={() => {
        isHeld.current = false;
      }}
      onPointerCancel={() => {
        isHeld.current = false;
      }}
    >
      <title>Click or drag to go there</title>
      <Boxes shown={shown} paint={paint} />
      <Sight />
    </svg>
  );
}

function Boxes({ shown: { visible, layout, open }, paint }: Props) {
  return (
    <>
      {visible.items.map((item) => {
        const { x, y, width, height } = layout.boxes.get(item.id)!;
        const kind = open.has(item.id) ? "graph-map-frame" : "graph-map-box";
        const color = open.has(item.id) ? "" : paint?.markOf(item).color;
        const style = color && color !== "transparent" ? { fill: color } : {};
        return <rect key={item.id} class={kind} x={x} y={y} width={width} height={height} style={style} />;
      })}
    </>
  );
}

/** Apart, so that moving the picture draws nothing else anew. */
function Sight() {
  const { x, y, width, height } = sightOf(camera.value, screen.value);
  return <rect class="graph-map-sight" x={x} y={y} width={width} height={height} />;
}
