// The sparkline above the table: total error from the model's input to its output.

import { buckets, JUMP_DB, jumps, NORMAL_DB } from "../errorline.ts";
import { shorten } from "../format.ts";
import { type Column, numberAt, textAt } from "../records.ts";
import { useWidth } from "./useWidth.ts";

const HEIGHT = 56;

interface Props {
  columns: ReadonlyMap<string, Column>;
  rows: number;
  active: number;
  onOpen: (row: number) => void;
}

export function ErrorLine({ columns, rows, active, onOpen }: Props) {
  const [box, width] = useWidth(800, 100);
  const total = columns.get("total_sqnr_db");
  const found = buckets(total, rows, Math.floor(width / 2));
  const there = found.filter((bucket) => bucket !== null);
  const high = Math.max(50, ...there.map((bucket) => Math.min(80, bucket.high)));
  const low = Math.min(0, ...there.map((bucket) => bucket.low));
  const x = (row: number) => ((row + 0.5) / Math.max(1, rows)) * width;
  const y = (value: number) => 4 + ((high - Math.min(high, value)) / (high - low)) * (HEIGHT - 8);
  const path = there.map((b, i) => `${i ? "L" : "M"}${x(b.row).toFixed(1)} ${y(b.low).toFixed(1)}`).join("");
  const worst = jumps(columns, rows);
  const nameOf = (row: number) => textAt(columns.get("name"), row);
  return (
    <div class="error-line">
      <div class="error-line-plot" ref={box}>
        {/* biome-ignore lint/a11y/useKeyWithClickEvents: the buttons beside it and the table do the same */}
        <svg
          role="img"
          aria-label="Error along the graph"
          width={width}
          height={HEIGHT}
          onClick={(event) => {
            const at = there.reduce<number>(
              (best, b) => (Math.abs(x(b.row) - event.offsetX) < Math.abs(x(best) - event.offsetX) ? b.row : best),
              0,
            );
            onOpen(at);
          }}
        >
          <title>Total SQNR in dB from the model's input (left) to its output (right); 25 and more is normal</title>
          <rect class="normal-band" x={0} y={0} width={width} height={y(25)} />
          <text text-anchor="end" x={width - 6} y={14}>
            total error, normal from 25 dB up
          </text>
          <path d={path} class="line" />
          {worst.map(({ row, total: at }) => (
            <circle key={row} class="jump" cx={x(row)} cy={y(at)} r={4} />
          ))}
          {active >= 0 && <line class="cursor" x1={x(active)} x2={x(active)} y1={0} y2={HEIGHT} />}
          {active >= 0 && !Number.isNaN(numberAt(total, active)) && (
            <circle class="cursor" cx={x(active)} cy={y(numberAt(total, active))} r={3} />
          )}
        </svg>
      </div>
      <div class="jumps">
        <span class="muted">
          {worst.length
            ? "Total error jumps at"
            : `No op takes ${JUMP_DB} dB or more to below the normal ${NORMAL_DB} dB`}
        </span>
        {worst.map(({ row, arrived, total: at }) => (
          <button
            key={row}
            type="button"
            class="link"
            title={`${nameOf(row)}: ${Number.isFinite(arrived) ? `${arrived.toFixed(1)} dB arrive` : "no error arrives"}, ${at.toFixed(1)} dB leave`}
            onClick={() => onOpen(row)}
          >
            {shorten(nameOf(row), 30)}{" "}
            <span class="muted">
              {Number.isFinite(arrived) ? arrived.toFixed(0) : "no error"} → {at.toFixed(0)} dB
            </span>
          </button>
        ))}
      </div>
    </div>
  );
}
