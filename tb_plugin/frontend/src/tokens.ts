// The verdict on a language model in tokens, as figures and colors.

import { formatNumber } from "./format.ts";
import type { Tokens } from "./records.ts";
import { colorOf } from "./scale.ts";

/** Divergences in nats: below the first nobody notices, from the last on the two have nothing in common. */
const [NORMAL, LOST] = [0.01, 10];

export interface Figure {
  label: string;
  value: string;
  /** The interval that holds it in 95 of 100 cases. */
  interval: string;
  help: string;
}

export function figures(tokens: Tokens): Figure[] {
  const found: (Figure | null)[] = [
    figure(tokens, "kl", "KL divergence", "nats", "How far the distributions of a token are apart, the mean over all."),
    figure(tokens, "same_top1", "Same first choice", "share", "Both models find the same token most likely."),
    figure(
      tokens,
      "same_top5",
      "Among the first five",
      "share",
      "The reference's first choice is among the quantized model's first five.",
    ),
    perplexity(tokens),
    figure(
      tokens,
      "change_nll",
      "Change a token",
      "nats",
      "How much less likely the quantized model finds the text: the difference of the negative log-likelihoods.",
    ),
  ];
  return found.filter((one) => one !== null);
}

type Mean = "kl" | "same_top1" | "same_top5" | "change_nll";

function figure(tokens: Tokens, name: Mean, label: string, unit: string, help: string): Figure | null {
  const value = tokens[name];
  if (value === undefined || value === null) return null;
  const told = (number: number) => (unit === "share" ? formatNumber(number, unit) : `${formatNumber(number)} ${unit}`);
  const interval = tokens.intervals?.[name];
  return { label, value: told(value), interval: interval ? `${told(interval[0])} to ${told(interval[1])}` : "", help };
}

function perplexity({ nll_reference, nll_quantized }: Tokens): Figure | null {
  if (typeof nll_reference !== "number" || typeof nll_quantized !== "number") return null;
  const [mine, theirs] = [nll_reference, nll_quantized].map((nll) => formatNumber(Math.exp(nll)));
  const help = "Among how many tokens a model seems to choose the next one of the text; fewer is better.";
  return { label: "Perplexity", value: `${mine} → ${theirs}`, interval: "", help };
}

/** On one line, with a sign where one ends. */
export function inLine(text: string): string {
  return text.replaceAll("\n", "⏎");
}

/** The same in every run: nothing up to what is normal, then from amber to red on a logarithmic scale. */
export function tokenColor(kl: number | null): string {
  if (kl === null || !(kl > NORMAL)) return "transparent";
  return colorOf(Math.min(1, Math.log(kl / NORMAL) / Math.log(LOST / NORMAL)));
}
