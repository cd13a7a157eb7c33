// What the op costs, from the profile where one was logged.

import { formatNumber, formatTime } from "../../format.ts";
import { readyValue } from "../../loadable.ts";
import {
  differenceText,
  type Entry,
  entries,
  fusedText,
  intervalText,
  type Model,
  modelsOf,
  OUTCOME_WORDS,
  outcome,
  rowWith,
} from "../../profile.ts";
import * as state from "../../state.ts";
import { Facts } from "./Facts.tsx";

export function Times({ name, row }: { name: string; row: number }) {
  const rows = state.has("profile") ? (readyValue(state.record("profile"))?.rows ?? []) : [];
  const profiled = rows[rowWith(rows, name)];
  if (!profiled)
    return (
      <Facts
        title="Time and size"
        names={["time_fp32_us", "time_int8_us", "convert_us", "speedup", "params"]}
        row={row}
      />
    );
  const [entry] = entries([profiled], "op");
  const others = [profiled.op, ...(profiled.ops ?? [])].filter((other) => other !== name);
  return (
    <>
      <section class="d-section" aria-label="Time">
        <h3>Time</h3>
        <dl class="d-facts">
          {facts(entry!, modelsOf(rows)).map(([label, value, title]) => (
            <div key={label} title={title}>
              <dt>{label}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
        {others.length > 0 && <p class="muted">It {fusedText(others)}: the times are of all of them.</p>}
      </section>
      <Facts title="Size" names={["params"]} row={row} />
    </>
  );
}

/** Label, value and, of the difference, its interval. */
function facts(entry: Entry, models: Model[]): string[][] {
  const found = models.map((model) => [`median time in ${model}`, formatTime(entry[model])]);
  if (models.includes("int8")) found.push(["conversion around it", formatTime(entry.convert)]);
  if (models.length > 1) {
    const noise = outcome(entry) === "noise" ? `, ${OUTCOME_WORDS.noise}` : "";
    found.push(["difference", `${differenceText(entry)}${noise}`, intervalText(entry)]);
    found.push(["speed-up", Number.isNaN(entry.speedup) ? "–" : `${formatNumber(entry.speedup)} times`]);
  }
  return found;
}
