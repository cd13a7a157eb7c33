// The table of ops: sort, filter, choose columns, copy; the line of the error along the graph above it.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ErrorLine } from "../components/ErrorLine.tsx";
import { Grid } from "../components/Grid.tsx";
import { Loaded, Loading, Problem } from "../components/Status.tsx";
import { causeOf } from "../configs.ts";
import { copy } from "../csv.ts";
import { gridColumn, opCell, reasonCell } from "../opcolumns.tsx";
import { nextSort } from "../order.ts";
import { type TableHeader, textAt } from "../records.ts";
import * as state from "../state.ts";
import { Toolbar } from "./ops/Toolbar.tsx";
import { broken, chosenCsv, loaded, order, scales, selected, shown } from "./ops/table.ts";

export function OpsView() {
  return (
    <Loaded of={state.header.value} what="the op table">
      {(header) => <OpTable header={header} />}
    </Loaded>
  );
}

/** Of what was fused into another op, the cause of that one. */
function causeAt(nameOf: (row: number) => string, row: number): string | undefined {
  const own = causeOf.value.get(nameOf(row));
  if (own || textAt(loaded.value.get("verdict"), row) === "ok") return own;
  return causeOf.value.get(textAt(loaded.value.get("unit"), row));
}

function OpTable({ header }: { header: TableHeader }) {
  const specs = new Map(header.columns.map((spec) => [spec.name, spec]));
  const active = state.rowOf.value.get(state.op.value) ?? -1;
  const nameOf = (row: number) => textAt(loaded.value.get("name"), row);
  const last = useSignal(-1);
  const here = active >= 0 ? active : last.value;
  useEffect(() => {
    selected.value = new Set();
  }, [header]);
  const worst = nameOf(order.value[0] ?? -1);
  useEffect(() => {
    // Most readers open the first op: when they do, the server knows where its records are.
    const later = setTimeout(() => worst && state.histograms(worst) && state.channels(worst), 400);
    return () => clearTimeout(later);
  }, [worst]);
  const fatal = broken.value.get("name");
  if (fatal !== undefined) return <Problem message={fatal} />;
  const first = ["name", ...state.sort.value.map(({ column }) => column)].filter((name) => specs.has(name));
  // Until it is known by what they are ranked, the rows would jump.
  if (!state.isRanked.value) return <Loading what="the op table" />;
  if (!first.every((name) => loaded.value.has(name) || broken.value.has(name))) return <Loading what="the op table" />;
  return (
    <section class="view ops" aria-label="Ops">
      <ErrorLine
        columns={loaded.value}
        rows={header.rows}
        active={here}
        isProbed={state.isProbed.value}
        onOpen={(row) => state.openOp(nameOf(row))}
      />
      <Toolbar header={header} />
      <Grid
        label="Ops"
        columns={shown.value.map((name, i) =>
          gridColumn(specs.get(name)!, i < state.pinned.value, loaded.value.get(name)),
        )}
        rows={order.value}
        cell={(row, name) => {
          const wrong = broken.value.get(name);
          if (wrong !== undefined) return { content: "⚠", title: wrong, class: "none" };
          const own = loaded.value.get(name);
          if (name === "reason") return reasonCell(textAt(own, row), causeAt(nameOf, row));
          return opCell(own, scales.value.get(name), row, loaded.value.get("reason"), loaded.value.get("module"));
        }}
        sort={state.sort.value}
        onSort={(column, add) => {
          const spec = specs.get(column)!;
          const worstIsLow = spec.type === "text" || spec.better !== "lower";
          state.chosenSort.value = nextSort(state.sort.value, column, worstIsLow, add);
        }}
        active={here}
        onActive={(row) => {
          last.value = row;
          if (state.op.value) state.openOp(nameOf(row));
        }}
        onOpen={(row) => state.openOp(nameOf(row))}
        selected={selected.value}
        onSelect={(rows) => {
          selected.value = rows;
        }}
        onCopy={() => void copy(chosenCsv())}
        empty={<p>No op passes the filter. Clear the search box, or choose other types and verdicts.</p>}
      />
    </section>
  );
}
