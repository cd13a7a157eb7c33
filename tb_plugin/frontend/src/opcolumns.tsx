// The op table's columns as the grid shows them: label, unit, normal range and explanation of each.

import type { GridCell, GridColumn } from "./components/Grid.tsx";
import { exactText } from "./csv.ts";
import { ruleWords } from "./evidence.ts";
import { formatNumber, formatRange, shortenMiddle } from "./format.ts";
import { type Column, type ColumnSpec, textAt, whyNull } from "./records.ts";
import type { Scale } from "./scale.ts";

const WIDTHS: Record<string, number> = { verdict: 76, reason: 210 };
const KEPT_END = 20;
const LONGEST_WHOLE = 22;
const LETTER = 8;
const LEAST_WIDTH = 84;
const MOST_WIDTH = 380;

/** The verdict ok in plain words; the others come with a reason. */
export const OK = "adds no more error than quantizing usually does";

export function labelOf(spec: ColumnSpec): string {
  return spec.label || spec.name;
}

export function describe(spec: ColumnSpec): string {
  const normal = spec.normal ? ` Normal: ${formatRange(spec.normal, spec.unit)}.` : "";
  const better = spec.better ? ` ${spec.better === "higher" ? "Higher" : "Lower"} is better.` : "";
  return `${spec.help ?? ""}${spec.unit ? ` Unit: ${spec.unit}.` : ""}${normal}${better}`;
}

export function Help({ spec }: { spec: ColumnSpec }) {
  return (
    <>
      <strong>{labelOf(spec)}</strong> <code>{spec.name}</code>
      <p>{spec.help}</p>
      <p class="muted">
        {spec.unit && <span>unit: {spec.unit}</span>}
        {spec.normal && <span> · normal: {formatRange(spec.normal, spec.unit)}</span>}
        {spec.better && <span> · {spec.better} is better</span>}
      </p>
    </>
  );
}

/** As wide as its longest text or its label. */
function widthOf(spec: ColumnSpec, column: Column | undefined): number {
  const own = WIDTHS[spec.name];
  if (own) return own;
  const label = 44 + 8 * labelOf(spec).length;
  const longest = column?.kind === "text" ? column.texts.reduce((most, { length }) => Math.max(most, length), 0) : 0;
  return Math.round(Math.min(MOST_WIDTH, Math.max(LEAST_WIDTH, label, 20 + LETTER * longest)));
}

/** Of its width it is told by the `column`, where that is there. */
export function gridColumn(spec: ColumnSpec, isPinned: boolean, column?: Column): GridColumn {
  return {
    id: spec.name,
    label: labelOf(spec),
    unit: spec.unit ?? "",
    help: <Help spec={spec} />,
    description: describe(spec),
    width: widthOf(spec, column),
    align: spec.type === "text" ? "left" : "right",
    pinned: isPinned,
    heads: spec.name === "name",
  };
}

/** A name, and what is to be said beside it. It is cut in the middle: its end tells the op, its beginning the place. */
export function nameCell(name: string, aside = "", title = name): GridCell {
  const at = Math.max(0, name.length - KEPT_END);
  const content = (
    <span class="cut-middle">
      {at > 0 && <span class="cut-start">{name.slice(0, at)}</span>}
      <span class="cut-end">{name.slice(at)}</span>
      {aside && <span class="cut-end muted">{` ${aside}`}</span>}
    </span>
  );
  return { content, title, label: aside ? `${name} ${aside}` : name };
}

const PART = /^part of (.+?)(?: in the quantized model; compared there|, which is not compared: .*|: compared there)$/s;

/** The op that this one was fused into, as the reason says; empty if it was not. */
export function wholeOf(reason: string): string {
  return PART.exec(reason)?.[1] ?? "";
}

/** What an op is blamed for in a word or two, and else with which op it goes, or why it has no numbers. */
export function reasonCell(reason: string, rule: string | undefined): GridCell {
  if (rule) return { content: <span class="tag">{ruleWords(rule)}</span>, title: reason };
  const whole = wholeOf(reason);
  if (whole)
    return { content: <span class="tag muted">with {shortenMiddle(whole, LONGEST_WHOLE)}</span>, title: reason };
  return { content: <span class="muted">{reason}</span>, title: reason };
}

export function opCell(
  column: Column | undefined,
  scale: Scale | null | undefined,
  row: number,
  reason: Column | undefined,
  module?: Column,
): GridCell {
  if (!column) return { content: "…" };
  if (column.kind === "text") {
    const text = column.texts[column.codes[row]!] ?? "";
    if (column.spec.name === "verdict") {
      return { content: text && <Verdict verdict={text} />, title: textAt(reason, row) || (text === "ok" ? OK : "") };
    }
    if (column.spec.name === "name") {
      // The module of the user's own model, beside a name that an exporter made up.
      const own = textAt(module, row);
      return !own || text.includes(own) ? nameCell(text) : nameCell(text, own, `${text}, of module ${own}`);
    }
    return { content: text, title: text };
  }
  const value = column.values[row]!;
  if (Number.isNaN(value)) return { content: "–", title: whyNull(column, row, reason), class: "none" };
  const background = scale ? scale.color(value) : "";
  return {
    content: formatNumber(value, column.spec.unit),
    title: `${exactText(column, value)} ${column.spec.unit ?? ""}`,
    background,
  };
}

export function Verdict({ verdict }: { verdict: string }) {
  return <span class={`verdict ${verdict}`}>{verdict}</span>;
}
