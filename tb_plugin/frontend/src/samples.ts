// The error of single samples: which inputs break, and at which op. Pure functions.

import type { SampleRow } from "./records.ts";

/** Little-endian floats, as text in base 64. */
export function floats(text: string): Float32Array {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Float32Array(bytes.buffer, 0, bytes.length >> 2);
}

/** Lowest and highest of each part of a sound, as shares of its largest magnitude; signed bytes in base 64. */
export function outline(text: string): { low: number; high: number }[] {
  const bytes = Int8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return Array.from({ length: bytes.length >> 1 }, (_, i) => ({
    low: bytes[2 * i]! / 127,
    high: bytes[2 * i + 1]! / 127,
  }));
}

/** Signal to noise of each sample in dB: infinite where there is no error, NaN where there is nothing to compare. */
export function sqnrs(power: Float32Array, error: Float32Array): Float64Array {
  return Float64Array.from(error, (noise, i) => {
    const signal = power[i] ?? Number.NaN;
    if (noise === 0) return signal > 0 ? Number.POSITIVE_INFINITY : Number.NaN;
    return 10 * Math.log10(signal / noise);
  });
}

export interface Sample {
  /** Its place in the data, from 0. */
  index: number;
  sqnrDb: number;
  /** Of the error of all samples. */
  share: number;
}

/** Of one op, the worst first: where the result is furthest from fp32, for its size. */
export function worstSamples(row: SampleRow): Sample[] {
  const error = floats(row.error);
  const found = sqnrs(floats(row.power), error);
  const all = error.reduce((sum, one) => sum + one, 0);
  const samples = Array.from(found, (sqnrDb, index) => ({ index, sqnrDb, share: (error[index] ?? 0) / all }));
  const last = (db: number) => (Number.isNaN(db) ? Number.POSITIVE_INFINITY : db);
  return samples.sort((a, b) =>
    last(a.sqnrDb) === last(b.sqnrDb) ? a.index - b.index : last(a.sqnrDb) - last(b.sqnrDb),
  );
}

/** Signal to noise of what one op adds to each sample, or of its whole error where only that is known. */
export function ofOp(row: SampleRow): { sqnrDb: Float64Array; isAdded: boolean } {
  const isAdded = Boolean(row.added);
  return { sqnrDb: sqnrs(floats(row.power), floats(row.added || row.error)), isAdded };
}

/** How uneven it is: whether a few samples break, or all suffer alike. */
export function summaryOf(samples: Sample[]): string {
  const known = samples.filter(({ sqnrDb }) => !Number.isNaN(sqnrDb));
  const worst = known[0];
  const middle = known[Math.floor(known.length / 2)];
  if (!worst || !middle) return "No sample could be compared.";
  const tenth = Math.max(1, Math.ceil(samples.length / 10));
  const share = samples
    .map(({ share }) => share)
    .sort((a, b) => b - a)
    .slice(0, tenth)
    .reduce((sum, one) => sum + one, 0);
  const words = `The tenth of the samples with the most error has ${Math.round(100 * share)} % of it`;
  return `${words}; the worst has ${decibels(worst.sqnrDb)}, the median ${decibels(middle.sqnrDb)}.`;
}

export function decibels(db: number): string {
  if (Number.isNaN(db)) return "–";
  return Number.isFinite(db) ? `${db.toFixed(1)} dB` : db > 0 ? "no error" : "not finite";
}
