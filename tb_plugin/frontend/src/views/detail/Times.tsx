// What the op costs, from the profile where one was logged.

import { formatNumber, formatTime } from "../../format.ts";
import { readyValue } from "../../loadable.ts";
import * as state from "../../state.ts";
import { Facts } from "./Facts.tsx";

export function Times({ name, row }: { name: string; row: number }) {
  const profiled = state.has("profile")
    ? readyValue(state.record("profile"))?.rows.find(({ op }) => op === name)
    : undefined;
  if (!profiled)
    return <Facts title="Time and size" names={["time_fp32_us", "time_int8_us", "convert_us", "params"]} row={row} />;
  const { fp32_us: fp32, int8_us: int8, convert_us: convert = 0 } = profiled;
  const speedUp = fp32 && int8 ? fp32 / (int8 + convert) : Number.NaN;
  const times: [string, string][] = [
    ["median time in fp32", formatTime(fp32 ?? Number.NaN)],
    ["median time in int8", formatTime(int8 ?? Number.NaN)],
    ["conversion around it", formatTime(convert)],
    [
      "speed-up",
      Number.isNaN(speedUp)
        ? "–"
        : `${formatNumber(speedUp)} times${profiled.differs === false ? ", inside the noise" : ""}`,
    ],
  ];
  return (
    <>
      <section class="d-section" aria-label="Time">
        <h3>Time</h3>
        <dl class="d-facts">
          {times.map(([label, value]) => (
            <div key={label}>
              <dt>{label}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
      </section>
      <Facts title="Size" names={["params"]} row={row} />
    </>
  );
}
