// The stored histograms (see inc_tb/measure/histogram.py for the bins), and how they become pictures.

import type { HistogramRow } from "./records.ts";

const PER_OCTAVE = 32;
const OCTAVES = 16;
const SIDE = PER_OCTAVE * OCTAVES;

/** The edges of the bins of a histogram with this top exponent: one more than there are bins. */
export function edges(top: number): Float64Array {
  const found = new Float64Array(2 * SIDE + 2);
  for (let i = 0; i <= SIDE; i++) {
    const key = i + (top - OCTAVES + 1) * PER_OCTAVE;
    const octave = Math.floor(key / PER_OCTAVE);
    const value = (1 + (key - octave * PER_OCTAVE) / PER_OCTAVE) * 2 ** (octave - 127);
    found[SIDE + 1 + i] = value;
    found[SIDE - i] = -value;
  }
  return found;
}

/** Smallest and largest edge of the bins that hold anything. */
export function extent(counts: number[], top: number): [number, number] {
  const at = edges(top);
  if (!counts.length) return [0, 0];
  return [at[counts[0]!]!, at[counts[counts.length - 2]! + 1]!];
}

export function total(counts: number[]): number {
  let sum = 0;
  for (let i = 1; i < counts.length; i += 2) sum += counts[i]!;
  return sum;
}

/** Share of the values in each of the given cells; a bin that lies in several is divided by its overlap. */
export function rebin(counts: number[], top: number, cells: ArrayLike<number>): Float64Array {
  const at = edges(top);
  const found = new Float64Array(cells.length - 1);
  const all = total(counts) || 1;
  let cell = 0;
  for (let i = 0; i < counts.length; i += 2) {
    const low = at[counts[i]!]!;
    const high = at[counts[i]! + 1]!;
    while (cell < found.length - 1 && cells[cell + 1]! <= low) cell++;
    for (let c = cell; c < found.length && cells[c]! < high; c++) {
      const overlap = Math.min(high, cells[c + 1]!) - Math.max(low, cells[c]!);
      found[c]! += (counts[i + 1]! / all) * Math.max(0, overlap / (high - low));
    }
  }
  return found;
}

/** Share of the reference's values further than `margin` outside of what the quantized type can hold, to a bin's width. */
export function shareOutside({ reference, top, limits }: HistogramRow, margin = 0): number | null {
  if (!limits) return null;
  const at = edges(top);
  let outside = 0;
  for (let i = 0; i < reference.length; i += 2) {
    const isAbove = at[reference[i]!]! >= limits[1] + margin;
    if (isAbove || at[reference[i]! + 1]! <= limits[0] - margin) outside += reference[i + 1]!;
  }
  return outside / (total(reference) || 1);
}

/** Where the quantized values lie, as long as they are few enough to be told apart. */
export function gridLines({ limits, step }: HistogramRow, most: number): number[] {
  if (!limits || !step) return [];
  const count = Math.round((limits[1] - limits[0]) / step) + 1;
  return count <= most ? Array.from({ length: count }, (_, i) => limits[0] + i * step) : [];
}
