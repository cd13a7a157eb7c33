// The timeline's picture.

import { scaleLinear } from "d3-scale";
import { formatTime, shorten } from "../../format.ts";
import { inSight, type Lane, type Window } from "../../timeline.ts";

export const GUTTER = 96;
const AXIS = 20;
const GAP = 3;

/** Dark enough for white letters on white pages, light enough for black ones on dark pages; the last is for the rest. */
const LIGHT = ["#1f6fb8", "#b5500b", "#2a7d3f", "#8a3fa0", "#b3261e", "#0f7575", "#7a5c00", "#5a4fcf", "#666d75"];
const DARK = ["#6db7ff", "#ffa35c", "#8fdc9f", "#d9a3ec", "#ff9d94", "#6fd6d6", "#e6cc6b", "#b5adff", "#b9bec4"];

export const MOST_COLORS = LIGHT.length - 1;

export function paletteOf(dark: boolean): string[] {
  return dark ? DARK : LIGHT;
}

export function laneHeight(lanes: number): number {
  return Math.round(Math.min(28, Math.max(12, 200 / lanes)));
}

export function heightOf(lanes: number): number {
  return lanes * laneHeight(lanes) + AXIS;
}

export interface Picture {
  lanes: Lane[];
  window: Window;
  width: number;
  dark: boolean;
  colorOf: (row: number) => number;
  nameOf: (row: number) => string;
  /** Spans of these stand out. */
  isChosen: (row: number) => boolean;
}

export function timeAt(x: number, window: Window, width: number): number {
  return window.from + ((x - GUTTER) / Math.max(1, width - GUTTER)) * (window.to - window.from);
}

export function paint(canvas: HTMLCanvasElement, picture: Picture): void {
  const { lanes, width } = picture;
  const height = heightOf(lanes.length);
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const css = getComputedStyle(canvas);
  const color = (name: string) => css.getPropertyValue(name).trim();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = `11px ${css.fontFamily}`;
  pen.textBaseline = "middle";
  paintAxis(pen, picture, height, color("--line"), color("--muted"));
  lanes.forEach((lane, i) => {
    const top = i * laneHeight(lanes.length);
    pen.fillStyle = color("--text");
    pen.textAlign = "left";
    pen.fillText(`${lane.model} thread ${lane.thread}`, 0, top + laneHeight(lanes.length) / 2, GUTTER - 6);
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, top, width - GUTTER, laneHeight(lanes.length));
    pen.clip();
    paintLane(pen, picture, lane, top, color("--text"));
    pen.restore();
  });
}

function paintAxis(pen: CanvasRenderingContext2D, picture: Picture, height: number, line: string, text: string): void {
  const { window: shown, width } = picture;
  const scale = scaleLinear().domain([shown.from, shown.to]).range([GUTTER, width]);
  pen.textAlign = "center";
  for (const tick of scale.ticks(Math.max(2, Math.floor((width - GUTTER) / 110)))) {
    const x = scale(tick);
    pen.fillStyle = line;
    pen.fillRect(x, 0, 1, height - AXIS);
    pen.fillStyle = text;
    if (x > GUTTER + 18 && x < width - 18) pen.fillText(formatTime(tick), x, height - AXIS / 2 + 2);
  }
}

function paintLane(pen: CanvasRenderingContext2D, picture: Picture, lane: Lane, top: number, outline: string): void {
  const { window: shown, width, dark, colorOf, nameOf, isChosen } = picture;
  const colors = paletteOf(dark);
  const perUs = (width - GUTTER) / (shown.to - shown.from);
  const height = laneHeight(picture.lanes.length) - GAP;
  const [first, last] = inSight(lane, shown);
  let painted = Number.NEGATIVE_INFINITY;
  for (let i = first; i < last; i++) {
    const x = GUTTER + (lane.starts[i]! - shown.from) * perUs;
    const wide = lane.durations[i]! * perUs;
    const row = lane.rows[i]!;
    const chosen = isChosen(row);
    // Thousands of spans share a pixel when all are in sight; one of them is enough.
    if (x + wide < painted && !chosen) continue;
    pen.fillStyle = colors[colorOf(row)]!;
    pen.fillRect(x, top, Math.max(0.75, wide - (wide > 3 ? 1 : 0)), height);
    painted = Math.floor(x + Math.max(1, wide));
    if (chosen) {
      pen.strokeStyle = outline;
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, top + 1, Math.max(1, wide - 3), height - 2);
    }
    const from = Math.max(x, GUTTER);
    const room = Math.min(x + wide, width) - from - 8;
    if (room > 34 && height > 10) {
      pen.fillStyle = dark ? "#000" : "#fff";
      pen.textAlign = "left";
      pen.fillText(shorten(nameOf(row), Math.floor(room / 6.2)), from + 4, top + height / 2 + 0.5, room);
    }
  }
}
