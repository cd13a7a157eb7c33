// The sparkline above the table: total error from the model's input to its output.

import { buckets, effects, type Jump, jumps, type Lowest, lowest, NORMAL_DB } from "../errorline.ts";
import { formatNumber, shorten } from "../format.ts";
import { type Column, numberAt, textAt } from "../records.ts";
import { EFFECT } from "../worst.ts";
import { useWidth } from "./useWidth.ts";

const HEIGHT = 56;

interface Props {
  columns: ReadonlyMap<string, Column>;
  rows: number;
  active: number;
  /** Whether the effects at the output were measured: they tell more than where error shows on its way. */
  isProbed: boolean;
  onOpen: (row: number) => void;
}

export function ErrorLine({ columns, rows, active, isProbed, onOpen }: Props) {
  const [box, width] = useWidth(800, 100);
  const total = columns.get("total_sqnr_db");
  const found = buckets(total, rows, Math.floor(width / 2));
  const there = found.filter((bucket) => bucket !== null);
  const high = Math.max(50, ...there.map((bucket) => Math.min(80, bucket.high)));
  const low = Math.min(0, ...there.map((bucket) => bucket.low));
  const x = (row: number) => ((row + 0.5) / Math.max(1, rows)) * width;
  const y = (value: number) => 4 + ((high - Math.min(high, value)) / (high - low)) * (HEIGHT - 8);
  const path = there.map((b, i) => `${i ? "L" : "M"}${x(b.row).toFixed(1)} ${y(b.low).toFixed(1)}`).join("");
  const marked = isProbed ? effects(columns, rows) : jumps(columns, rows).map(({ row }) => row);
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
          {marked.map((row) => (
            <circle key={row} class="jump" cx={x(row)} cy={y(orMiddle(numberAt(total, row)))} r={4} />
          ))}
          {active >= 0 && <line class="cursor" x1={x(active)} x2={x(active)} y1={0} y2={HEIGHT} />}
          {active >= 0 && !Number.isNaN(numberAt(total, active)) && (
            <circle class="cursor" cx={x(active)} cy={y(numberAt(total, active))} r={3} />
          )}
        </svg>
      </div>
      <div class="jumps">
        {isProbed ? (
          <Effects columns={columns} worst={marked} onOpen={onOpen} />
        ) : (
          <Jumps columns={columns} rows={rows} onOpen={onOpen} />
        )}
      </div>
    </div>
  );
}

/** Ops without a total of their own are marked where normal begins. */
function orMiddle(total: number): number {
  return Number.isNaN(total) ? NORMAL_DB : total;
}

type Told = Pick<Props, "columns" | "onOpen">;

function Effects({ columns, worst, onOpen }: Told & { worst: number[] }) {
  const effect = columns.get(EFFECT);
  if (!worst.length) return <span class="muted">No op alone does more to the output than is normal</span>;
  return (
    <>
      <span class="muted">Most is done to the output by</span>
      {worst.map((row) => (
        <OpLink
          key={row}
          name={textAt(columns.get("name"), row)}
          title={`${textAt(columns.get("name"), row)}: error of the output when only this is quantized`}
          text={formatNumber(numberAt(effect, row), effect?.spec.unit)}
          onOpen={() => onOpen(row)}
        />
      ))}
    </>
  );
}

function Jumps({ columns, rows, onOpen }: Told & { rows: number }) {
  const worst = jumps(columns, rows);
  const bottom = lowest(columns.get("total_sqnr_db"), rows);
  const culprit = lowest(columns.get("added_sqnr_db"), rows);
  const nameOf = (row: number) => textAt(columns.get("name"), row);
  return (
    <>
      <span class="muted">{leadOf(worst, bottom)}</span>
      {worst.map(({ row, arrived, total: at }) => (
        <OpLink
          key={row}
          name={nameOf(row)}
          title={`${nameOf(row)}: ${arrivalOf(arrived)}, ${at.toFixed(1)} dB leave`}
          text={`${Number.isNaN(arrived) ? "?" : Number.isFinite(arrived) ? arrived.toFixed(0) : "no error"} → ${at.toFixed(0)} dB`}
          onOpen={() => onOpen(row)}
        />
      ))}
      {!worst.length && isLow(bottom) && (
        <>
          <OpLink
            name={nameOf(bottom.row)}
            title={`${nameOf(bottom.row)}: ${bottom.value.toFixed(1)} dB leave`}
            text={`${bottom.value.toFixed(0)} dB`}
            onOpen={() => onOpen(bottom.row)}
          />
          {isLow(culprit) && (
            <>
              <span class="muted">most is added at</span>
              <OpLink
                name={nameOf(culprit.row)}
                title={`${nameOf(culprit.row)}: ${culprit.value.toFixed(1)} dB with correct inputs`}
                text={`${culprit.value.toFixed(0)} dB`}
                onOpen={() => onOpen(culprit.row)}
              />
            </>
          )}
        </>
      )}
    </>
  );
}

function OpLink({ name, title, text, onOpen }: { name: string; title: string; text: string; onOpen: () => void }) {
  return (
    <button type="button" class="link" title={title} onClick={onOpen}>
      {shorten(name, 36)} <span class="muted">{text}</span>
    </button>
  );
}

function isLow(found: Lowest | null): found is Lowest {
  return found !== null && found.value < NORMAL_DB;
}

/** True of every op that has a total, and no claim about others. */
function leadOf(worst: Jump[], bottom: Lowest | null): string {
  if (worst.length) {
    return worst.every(({ arrived }) => Number.isNaN(arrived)) ? "Total error begins at" : "Total error jumps at";
  }
  if (!bottom) return "No total error is known";
  return isLow(bottom) ? "Total error is largest at" : `Normal wherever it was compared: ${NORMAL_DB} dB or more`;
}

function arrivalOf(arrived: number): string {
  if (Number.isNaN(arrived)) return "what arrives was not compared";
  return Number.isFinite(arrived) ? `${arrived.toFixed(1)} dB arrive` : "no error arrives";
}
