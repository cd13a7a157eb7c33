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
  return (
    <section class="d-section" aria-label={title}>
      <h3>{title}</h3>
      <dl class="d-facts">
        {columns.map((column) => (
          <div key={column.spec.name}>
            <dt {...explained(<Help spec={column.spec} />)}>{labelOf(column.spec)}</dt>
            <dd>{fact(column, row)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function fact(column: Column, row: number) {
  if (column.kind === "text") {
    return textAt(column, row) || <span class="muted">{column.spec.name === "act_dtype" ? "fp32" : "–"}</span>;
  }
  const value = column.values[row]!;
  return Number.isNaN(value) ? (
    <span class="muted">{whyNull(column, row, readyValue(state.column("reason"))) || "–"}</span>
  ) : (
    withUnit(value, column.spec.unit)
  );
}
