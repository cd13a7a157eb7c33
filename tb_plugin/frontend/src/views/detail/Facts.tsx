// Columns of the table for this one op, as a list of facts.

import { explained } from "../../components/Tooltip.tsx";
import { withUnit } from "../../format.ts";
import { readyValue } from "../../loadable.ts";
import { Help, labelOf } from "../../opcolumns.tsx";
import { type Column, textAt, whyNull } from "../../records.ts";
import * as state from "../../state.ts";

export function Facts({ title, names, row }: { title: string; names: string[]; row: number }) {
  const columns = names
    .map((name) => state.column(name))
    .flatMap((found) => (found.state === "ready" ? [found.value] : []));
  const known = columns.filter((column) => isKnown(column, row));
  if (!columns.length) return null;
  // One reason for all: a row for each number that is not there would say nothing more.
  const [why] = columns.map((column) => whyNull(column, row, readyValue(state.column("reason")))).filter(Boolean);
  return (
    <section class="d-section" aria-label={title}>
      <h3>{title}</h3>
      {!known.length && <p class="muted">{why || "Nothing of it was logged."}</p>}
      <dl class="d-facts">
        {known.map((column) => (
          <div key={column.spec.name}>
            <dt {...explained(<Help spec={column.spec} />)}>{labelOf(column.spec)}</dt>
            <dd>{fact(column, row)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

/** An output without a type is in fp32, which is worth a word. */
function isKnown(column: Column, row: number): boolean {
  if (column.kind === "text") return textAt(column, row) !== "" || column.spec.name === "act_dtype";
  return !Number.isNaN(column.values[row]!);
}

function fact(column: Column, row: number) {
  if (column.kind === "text") return textAt(column, row) || <span class="muted">fp32</span>;
  return withUnit(column.values[row]!, column.spec.unit);
}
