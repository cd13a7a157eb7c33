// All ops of the model side by side, in the order of the graph, each in the color that it has everywhere.

import { useWidth } from "../../components/useWidth.ts";
import { formatNumber } from "../../format.ts";
import type { Column } from "../../records.ts";
import type { Scale } from "../../scale.ts";
import * as state from "../../state.ts";
import { worstInGroups } from "../../worst.ts";
import { nameOf } from "./data.ts";

const HEIGHT = 26;
const LEAST_WIDTH = 3;

export function Strip({ column, scale, rows }: { column: Column; scale: Scale | null; rows: number }) {
  const [box, width] = useWidth(600, 120);
  const cells = worstInGroups(column, rows, Math.floor(width / LEAST_WIDTH));
  const step = width / Math.max(1, cells.length);
  const active = state.rowOf.value.get(state.op.value) ?? -1;
  return (
    <div class="ov-strip" ref={box}>
      {/* biome-ignore lint/a11y/useKeyWithClickEvents: the list below and the table do the same */}
      <svg
        role="img"
        aria-label="The model, op by op"
        width={width}
        height={HEIGHT}
        onClick={(event) => {
          const cell = cells[Math.min(cells.length - 1, Math.floor(event.offsetX / step))];
          if (cell) state.openOp(nameOf(cell.row < 0 ? cell.from : cell.row));
        }}
      >
        <title>From the model's input (left) to its output (right)</title>
        {cells.map(({ from, to, row, value }, i) => (
          <rect
            key={from}
            x={i * step}
            width={Math.max(1, step - (step > 6 ? 1 : 0))}
            height={HEIGHT}
            class={from <= active && active < to ? "here" : ""}
            style={{ fill: row < 0 ? undefined : scale?.color(value) }}
          >
            <title>{row < 0 ? nameOf(from) : `${nameOf(row)}: ${formatNumber(value, column.spec.unit)}`}</title>
          </rect>
        ))}
      </svg>
    </div>
  );
}
