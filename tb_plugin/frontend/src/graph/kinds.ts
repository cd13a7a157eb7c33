// The texts of a column as kinds of ops: the most frequent ones have a color each, the others share one.

import { natural } from "../records.ts";

/** For nodes on light and dark pages, with the page's letters legible on each. No red, which means bad elsewhere. */
export const COLORS = [
  "hsl(212 90% 52% / 0.4)",
  "hsl(30 95% 52% / 0.42)",
  "hsl(145 70% 40% / 0.42)",
  "hsl(275 75% 60% / 0.42)",
  "hsl(52 100% 44% / 0.33)",
  "hsl(182 90% 40% / 0.42)",
  "hsl(325 80% 60% / 0.42)",
  "hsl(85 85% 38% / 0.42)",
  "hsl(22 50% 42% / 0.52)",
  "hsl(240 65% 64% / 0.5)",
];
export const OTHER = "hsl(0 0% 50% / 0.3)";

interface Kind {
  text: string;
  color: string;
}

export interface Kinds {
  /** Those with a color of their own, in the order of their texts: so they keep it while their counts change. */
  own: Kind[];
  /** How many share the color OTHER. */
  others: number;
}

export function kindsOf(texts: string[]): Kinds {
  const counts = new Map<string, number>();
  for (const text of texts) if (text) counts.set(text, (counts.get(text) ?? 0) + 1);
  const frequent = [...counts].sort(([a, m], [b, n]) => n - m || natural.compare(a, b)).slice(0, COLORS.length);
  const own = frequent
    .map(([text]) => text)
    .sort(natural.compare)
    .map((text, i) => ({ text, color: COLORS[i]! }));
  return { own, others: counts.size - own.length };
}
