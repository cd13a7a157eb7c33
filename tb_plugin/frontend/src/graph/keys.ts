// The keyboard: on a node along the edges, on the picture to move it.

import { active, fit, goTo, type Picture, pan, zoomIn, zoomOut } from "./model.ts";
import { neighbor } from "./walk.ts";

const STEP = 60;

const MOVES: Record<string, [number, number]> = {
  ArrowLeft: [STEP, 0],
  ArrowRight: [-STEP, 0],
  ArrowUp: [0, STEP],
  ArrowDown: [0, -STEP],
};

export function onKey(event: KeyboardEvent, shown: Picture): void {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isOnNode = (event.target as Element).closest("[data-item]") !== null;
  const move = MOVES[event.key];
  if (event.key === "+" || event.key === "=") zoomIn();
  else if (event.key === "-") zoomOut();
  else if (event.key === "0") fit();
  else if (move && (!isOnNode || event.shiftKey)) pan(...move);
  else if (isOnNode) {
    const next = neighbor(event.key, active.value, shown.visible, shown.open);
    if (next === undefined) return;
    if (next) goTo(next, true);
  } else return;
  event.preventDefault();
}
