// Time of each op or type: the numbers, and bars below each other.

import { useEffect, useMemo, useState } from "preact/hooks";
import { Grid } from "../../components/Grid.tsx";
import { formatNumber } from "../../format.ts";
import { matcher, nextSort, sorted } from "../../order.ts";
import { type Entry, entryColumns, type Grouping, type Model, OUTSIDE } from "../../profile.ts";
import type { NumberColumn } from "../../records.ts";
import { scaleOf } from "../../scale.ts";
import * as state from "../../state.ts";
import { filter, SLOWEST_FIRST, sort } from "./controls.ts";
import { cellOf } from "./timecells.tsx";
import { gridColumns } from "./timecolumns.ts";

const BY_LOW = new Set(["name", "type", "speedup", "added"]);

interface Props {
  found: Entry[];
  by: Grouping;
  models: Model[];
  /** The column of the op table that the last column comes from, if the run has it. */
  error: NumberColumn | null;
  /** Place of the entry that has the chosen op; -1 if none has. */
  chosen: number;
  onOpen: (entry: number) => void;
}

export function TimeGrid({ found, by, models, error, chosen, onOpen }: Props) {
  const columns = useMemo(() => entryColumns(found), [found]);
  const longest = useMemo(() => found.reduce((most, { fp32, time }) => Math.max(most, fp32 || 0, time), 0), [found]);
  const scale = useMemo(() => (error ? scaleOf(error) : null), [error]);
  const shown = gridColumns(by, models, error !== null);
  // Another run may lack the column that the reader has sorted by.
  const keys = sort.value.every(({ column }) => shown.some(({ id }) => id === column)) ? sort.value : SLOWEST_FIRST;
  const rows = useMemo(() => {
    const matches = matcher({ text: filter.value, regex: false });
    const passing = found.flatMap(({ name, type, fused }, row) =>
      typeof matches === "string" || matches([name || OUTSIDE, type, ...fused].join(" ")) ? [row] : [],
    );
    return sorted(Uint32Array.from(passing), keys, columns);
  }, [found, columns, filter.value, keys]);
  const [here, setHere] = useState(-1);
  useEffect(() => setHere(chosen), [chosen, found]);
  return (
    <Grid
      label={by === "op" ? "Time per op" : "Time per type"}
      columns={shown}
      rows={rows}
      cell={(row, column) => {
        const entry = found[row]!;
        if (column !== "added") return cellOf(entry, column, models, longest);
        if (Number.isNaN(entry.addedDb)) return { content: "–", class: "none" };
        return {
          content: formatNumber(entry.addedDb, "dB"),
          background: scale ? scale.color(entry.addedDb) : "",
        };
      }}
      sort={keys}
      onSort={(column, add) => {
        sort.value = nextSort(keys, column, BY_LOW.has(column), add);
      }}
      active={here}
      onActive={(row) => {
        setHere(row);
        if (state.op.value) onOpen(row);
      }}
      onOpen={onOpen}
      empty={<p>Nothing passes the filter. Clear the search box.</p>}
    />
  );
}
