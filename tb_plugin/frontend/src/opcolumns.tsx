// The op table's columns as the grid shows them: label, unit, normal range and explanation of each.

import type { GridCell, GridColumn } from "./components/Grid.tsx";
import { exactText } from "./csv.ts";
import { formatNumber, formatRange } from "./format.ts";
import { type Column, type ColumnSpec, textAt, whyNull } from "./records.ts";
import type { Scale } from "./scale.ts";

const WIDTHS: Record<string, number> = { name: 300, type: 120, verdict: 76, reason: 420, block: 160, unit: 160 };

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

export function gridColumn(spec: ColumnSpec, isPinned: boolean): GridColumn {
  return {
    id: spec.name,
    label: labelOf(spec),
    unit: spec.unit ?? "",
    help: <Help spec={spec} />,
    description: describe(spec),
    width: WIDTHS[spec.name] ?? Math.max(96, 44 + 8 * labelOf(spec).length),
    align: spec.type === "text" ? "left" : "right",
    pinned: isPinned,
    heads: spec.name === "name",
  };
}

/** A name, and what is to be said beside it. Its end tells more than its beginning: the cell cuts it at the front. */
export function nameCell(name: string, aside = "", title = name): GridCell {
  const content = (
    <bdi>
      {name}
      {aside && <span class="muted"> {aside}</span>}
    </bdi>
  );
  return { content, title, class: "cut-front" };
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
