// A table of any number of rows of which only those in sight are in the document. Sorting, pinned columns,
// selection and keys; what a cell says is up to the caller.

import type { ComponentChildren, JSX } from "preact";
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { SortKey } from "../state.ts";
import { indexOf, onClick, onKey, type Selectable } from "./gridkeys.ts";
import { explained } from "./Tooltip.tsx";

export interface GridColumn {
  id: string;
  label: string;
  unit?: string;
  help?: ComponentChildren;
  /** The same as plain text, for people who do not see it. */
  description?: string;
  width: number;
  align?: "left" | "right";
  pinned?: boolean;
  /** The column that names the row. */
  heads?: boolean;
  sortable?: boolean;
}

export interface GridCell {
  content: ComponentChildren;
  title?: string;
  /** What a screen reader says, where the content is in pieces. */
  label?: string;
  background?: string;
  class?: string;
}

interface Props extends Selectable {
  label: string;
  columns: GridColumn[];
  cell: (row: number, column: string) => GridCell;
  sort: SortKey[];
  onSort: (column: string, add: boolean) => void;
  rowHeight?: number;
  empty: ComponentChildren;
}

const OVERSCAN = 6;
const HEADER = 46;

export function Grid(props: Props) {
  const { label, columns, rows, sort, active, rowHeight = 28 } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });

  const look = useCallback(() => {
    const box = scroller.current;
    if (box) setView({ top: box.scrollTop, height: box.clientHeight });
  }, []);
  useLayoutEffect(() => {
    look();
    const watch = new ResizeObserver(look);
    if (scroller.current) watch.observe(scroller.current);
    return () => watch.disconnect();
  }, [look]);

  const place = active < 0 ? -1 : indexOf(rows, active);
  useEffect(() => {
    const box = scroller.current;
    if (!box || place < 0) return;
    const top = place * rowHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + rowHeight + HEADER > box.scrollTop + box.clientHeight) {
      box.scrollTop = top + rowHeight + HEADER - box.clientHeight;
    }
  }, [place, rowHeight]);

  const from = Math.max(0, Math.floor(view.top / rowHeight) - OVERSCAN);
  const to = Math.min(rows.length, Math.ceil((view.top + view.height) / rowHeight) + OVERSCAN);
  const lefts = pinnedLefts(columns);
  const width = columns.reduce((sum, column) => sum + column.width, 0);
  const id = `grid-${label.replaceAll(" ", "-").toLowerCase()}`;
  const shown: JSX.Element[] = [];
  for (let i = from; i < to; i++) {
    const row = rows[i]!;
    shown.push(<Row key={row} {...props} id={id} index={i} row={row} lefts={lefts} rowHeight={rowHeight} />);
  }

  return (
    <div
      class="grid"
      role="grid"
      aria-label={label}
      aria-rowcount={rows.length + 1}
      aria-colcount={columns.length}
      aria-multiselectable={props.onSelect ? true : undefined}
      aria-activedescendant={place >= from && place < to ? `${id}-${active}` : undefined}
      tabIndex={0}
      ref={scroller}
      onScroll={look}
      onKeyDown={(event) => onKey(event, props, place, Math.floor(view.height / rowHeight) - 2)}
    >
      <div class="grid-head" role="rowgroup" style={{ minWidth: `${width}px`, height: `${HEADER}px` }}>
        <div role="row" aria-rowindex={1} class="grid-row">
          {columns.map((column, i) => (
            <Head key={column.id} column={column} index={i} left={lefts[i]} sort={sort} onSort={props.onSort} />
          ))}
        </div>
      </div>
      <div
        role="rowgroup"
        style={{ minWidth: `${width}px`, height: `${rows.length * rowHeight}px`, position: "relative" }}
      >
        {shown}
      </div>
      {rows.length === 0 && <div class="grid-empty">{props.empty}</div>}
    </div>
  );
}

function Head(props: {
  column: GridColumn;
  index: number;
  left: number | undefined;
  sort: SortKey[];
  onSort: Props["onSort"];
}) {
  const { column, index, left, sort, onSort } = props;
  const at = sort.findIndex((key) => key.column === column.id);
  const direction = at < 0 ? "none" : sort[at]!.descending ? "descending" : "ascending";
  const arrow = at < 0 ? "" : direction === "descending" ? "▼" : "▲";
  const text = (
    <>
      <span class="head-label">{column.label}</span>
      <span class="sort-mark" aria-hidden="true">
        {arrow}
        {at >= 0 && sort.length > 1 ? <sub>{at + 1}</sub> : null}
      </span>
      <span class="head-unit">{column.unit || "\u00a0"}</span>
    </>
  );
  return (
    <div
      role="columnheader"
      aria-colindex={index + 1}
      aria-sort={column.sortable === false ? undefined : direction}
      aria-description={column.description}
      class={cellClass(column, left, "head")}
      style={cellStyle(column, left)}
      {...(column.help ? explained(column.help) : {})}
    >
      {column.sortable === false ? (
        <span class="head-text">{text}</span>
      ) : (
        <button type="button" class="head-text" onClick={(event) => onSort(column.id, event.shiftKey)}>
          {text}
        </button>
      )}
    </div>
  );
}

function Row(
  props: Props & { id: string; index: number; row: number; lefts: (number | undefined)[]; rowHeight: number },
) {
  const { id, index, row, columns, lefts, rowHeight, cell, selected, active } = props;
  const isSelected = selected?.has(row) ?? false;
  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the grid has the keyboard
    <div
      role="row"
      id={`${id}-${row}`}
      aria-rowindex={index + 2}
      aria-selected={selected ? isSelected : undefined}
      class={`grid-row body${row === active ? " active" : ""}${isSelected ? " selected" : ""}`}
      style={{ transform: `translateY(${index * rowHeight}px)`, height: `${rowHeight}px` }}
      onClick={(event) => onClick(event, props, row, index)}
    >
      {columns.map((column, i) => {
        const { content, title, label, background, class: extra } = cell(row, column.id);
        return (
          // biome-ignore lint/a11y/useAriaPropsSupportedByRole: both roles support it
          <div
            key={column.id}
            role={column.heads ? "rowheader" : "gridcell"}
            aria-colindex={i + 1}
            class={cellClass(column, lefts[i], extra ?? "")}
            style={{ ...cellStyle(column, lefts[i]), ...(background ? { "--cell": background } : {}) }}
            title={title}
            aria-label={label}
          >
            {content}
          </div>
        );
      })}
    </div>
  );
}

function pinnedLefts(columns: GridColumn[]): (number | undefined)[] {
  let left = 0;
  return columns.map((column) => {
    if (!column.pinned) return undefined;
    left += column.width;
    return left - column.width;
  });
}

function cellClass(column: GridColumn, left: number | undefined, extra: string): string {
  return `cell ${column.align ?? "left"}${left === undefined ? "" : " pinned"} ${extra}`;
}

function cellStyle(column: GridColumn, left: number | undefined): Record<string, string> {
  return { width: `${column.width}px`, ...(left === undefined ? {} : { left: `${left}px` }) };
}
