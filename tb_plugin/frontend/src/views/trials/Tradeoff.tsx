// What accuracy costs: trials by their accuracy and one of their objectives.

import { signal } from "@preact/signals";
import { Front } from "../../components/Front.tsx";
import { Levels } from "../../components/Levels.tsx";
import { Chart } from "../../components/RunChart.tsx";
import { plural } from "../../format.ts";
import { mainObjective, objective } from "../../objectives.ts";
import * as state from "../../state.ts";
import { comparedKey, dotsOf, judged, padded, table, tradeoffBy, upAxis } from "../../trials.ts";

const chosenObjective = signal("");
/** Directions that the reader has set, where the key's words mislead. */
const directions = signal<Record<string, "higher" | "lower">>({});

export function Tradeoff() {
  const { objectives } = table.value;
  const key = objectives.includes(chosenObjective.value) ? chosenObjective.value : mainObjective(objectives);
  if (!key) return <NoObjective />;
  const { unit, label, better: guessed } = objective(key);
  const better = directions.value[key] ?? guessed;
  const found = tradeoffBy(key, better);
  const { drawn, points, front } = found;
  const dots = dotsOf(found, { label, unit });
  const best = front.map((i) => drawn[i]?.run ?? "fp32").join(", ");
  return (
    <figure class="trials-chart">
      <Choices keys={objectives} chosen={key} label={label} better={better} />
      {dots.length ? (
        <Chart
          name={`Accuracy against ${key}`}
          description={`${plural(dots.length, "trial")}; on the Pareto front: ${best}`}
          x={{ domain: padded(points.map(({ x }) => x)), label, unit }}
          y={upAxis.value}
          dots={dots}
        >
          {(x, y) => (
            <>
              <Levels x={x} y={y} />
              <Front of={found} x={x} y={y} />
            </>
          )}
        </Chart>
      ) : (
        <p>No trial has both an accuracy and {key}.</p>
      )}
      <p class="muted trials-key">
        <span class="trials-diamond" aria-hidden="true" /> Pareto front: no other trial is better in one without being
        worse in the other.
        {drawn.length < judged.value.length &&
          ` ${plural(judged.value.length - drawn.length, "trial")} without ${key} not drawn.`}
        {comparedKey()}
      </p>
    </figure>
  );
}

interface ChoicesProps {
  keys: string[];
  chosen: string;
  label: string;
  better: "higher" | "lower";
}

function Choices({ keys, chosen, label, better }: ChoicesProps) {
  return (
    <figcaption class="trials-line">
      <label>
        Accuracy against{" "}
        <select
          aria-label="Objective"
          value={chosen}
          onChange={(event) => {
            chosenObjective.value = event.currentTarget.value;
          }}
        >
          {keys.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      </label>
      <select
        aria-label={`Which ${label} is better`}
        value={better}
        onChange={(event) => {
          directions.value = { ...directions.value, [chosen]: event.currentTarget.value as "higher" | "lower" };
        }}
      >
        <option value="lower">lower is better</option>
        <option value="higher">higher is better</option>
      </select>
    </figcaption>
  );
}

function NoObjective() {
  return (
    <div class="trials-chart">
      <h2>No trial has an objective</h2>
      <p>Accuracy can be drawn against latency, size or anything else that a trial logs:</p>
      <pre>{`writer.add_trial(inc_tb.Trial("${state.run.value}", accuracy=0.75,\n    objectives={"latency_ms": 4.2}))`}</pre>
      <p class="muted">The end of the name is the unit: _ms, _us, _s, _mb, _kb, _bytes, _share, _pct.</p>
    </div>
  );
}
