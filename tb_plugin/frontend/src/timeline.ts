// Where spans lie on the timeline, which of them are in sight, and how zooming moves the window. Pure functions.

import type { ProfileRow, Span } from "./records.ts";

export interface Lane {
  model: Span[0];
  thread: number;
  /** In the order of their starts. */
  starts: Float64Array;
  durations: Float64Array;
  /** Row of each span's op. */
  rows: Uint32Array;
  /** The longest one tells how far before the window a span may begin. */
  longest: number;
}

/** One lane for each model and thread: fp32 first, threads in order. */
export function lanesOf(rows: ProfileRow[]): Lane[] {
  const found = new Map<string, { model: Span[0]; thread: number; spans: [number, number, number][] }>();
  rows.forEach((row, i) => {
    for (const [model, thread, start, duration] of row.spans ?? []) {
      const key = `${model} ${thread}`;
      if (!found.has(key)) found.set(key, { model, thread, spans: [] });
      found.get(key)!.spans.push([start, duration, i]);
    }
  });
  return [...found.values()]
    .sort((a, b) => (a.model === b.model ? a.thread - b.thread : a.model < b.model ? -1 : 1))
    .map(({ model, thread, spans }) => {
      spans.sort((a, b) => a[0] - b[0]);
      return {
        model,
        thread,
        starts: Float64Array.from(spans, (span) => span[0]),
        durations: Float64Array.from(spans, (span) => span[1]),
        rows: Uint32Array.from(spans, (span) => span[2]),
        longest: spans.reduce((most, span) => Math.max(most, span[1]), 0),
      };
    });
}

/** A stretch of time in µs. */
export interface Window {
  from: number;
  to: number;
}

export function wholeOf(lanes: Lane[]): Window {
  let from = Number.POSITIVE_INFINITY;
  let to = Number.NEGATIVE_INFINITY;
  for (const { starts, durations } of lanes) {
    for (let i = 0; i < starts.length; i++) {
      from = Math.min(from, starts[i]!);
      to = Math.max(to, starts[i]! + durations[i]!);
    }
  }
  return from < to ? { from, to } : { from: 0, to: 1 };
}

/** First and last + 1 of the spans that can reach into the window. */
export function inSight(lane: Lane, { from, to }: Window): [number, number] {
  return [firstFrom(lane.starts, from - lane.longest), firstFrom(lane.starts, to)];
}

function firstFrom(sorted: Float64Array, value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The span at a time, or the nearest within `slack`; -1 if there is none. */
export function spanAt(lane: Lane, time: number, slack: number): number {
  const [first, last] = inSight(lane, { from: time - slack, to: time + slack });
  let best = -1;
  let distance = slack;
  for (let i = first; i < last; i++) {
    const start = lane.starts[i]!;
    const away = Math.max(start - time, time - (start + lane.durations[i]!), 0);
    if (away === 0) return i;
    if (away <= distance) [best, distance] = [i, away];
  }
  return best;
}

const SHORTEST_US = 0.05;

/** Factors below 1 zoom in; the time `at` stays where it is. */
export function zoomed(window: Window, at: number, factor: number, whole: Window): Window {
  const span = window.to - window.from;
  const wanted = Math.min(whole.to - whole.from, Math.max(SHORTEST_US, span * factor));
  const from = at - ((at - window.from) / span) * wanted;
  return kept({ from, to: from + wanted }, whole);
}

export function moved(window: Window, by: number, whole: Window): Window {
  return kept({ from: window.from + by, to: window.to + by }, whole);
}

/** As long as before, but inside of what there is. */
function kept({ from, to }: Window, whole: Window): Window {
  const span = Math.min(to - from, whole.to - whole.from);
  const start = Math.min(Math.max(from, whole.from), whole.to - span);
  return { from: start, to: start + span };
}

/** The types with most time get a color of their own, worst first; the others share the last one. */
export function colorIndex(rows: ProfileRow[], most: number): Map<string, number> {
  const time = new Map<string, number>();
  for (const { op, type = "", spans = [] } of rows) {
    const sum = spans.reduce((all, span) => all + span[3], 0);
    if (op && sum > 0) time.set(type, (time.get(type) ?? 0) + sum);
  }
  const sorted = [...time].sort((a, b) => b[1] - a[1]);
  return new Map(sorted.map(([type], i) => [type, Math.min(i, most)]));
}
