// All trials at one look: what accuracy costs, and where fp32 is.

import { tuneCommand } from "../../commands.ts";
import { Front } from "../../components/Front.tsx";
import { Levels } from "../../components/Levels.tsx";
import { Chart } from "../../components/RunChart.tsx";
import { readyValue } from "../../loadable.ts";
import { mainObjective, objective } from "../../objectives.ts";
import { scoresOf } from "../../overview.ts";
import * as state from "../../state.ts";
import { dotsOf, judged, padded, table, tradeoffBy, upAxis } from "../../trials.ts";
import { Card } from "./Card.tsx";

export function Tradeoff() {
  const key = mainObjective(table.value.objectives);
  return (
    <Card name="Trials" link="all trials" view="trials" beside={<CompareWithBest />}>
      {judged.value.length && key ? <Picture objectiveKey={key} /> : <None isJudged={judged.value.length > 0} />}
    </Card>
  );
}

function Picture({ objectiveKey }: { objectiveKey: string }) {
  const { label, unit, better } = objective(objectiveKey);
  const found = tradeoffBy(objectiveKey, better);
  if (!found.drawn.length) return <None isJudged />;
  return (
    <Chart
      name={`Accuracy against ${objectiveKey}`}
      description={`${found.drawn.length} trials`}
      height={176}
      x={{ domain: padded(found.points.map(({ x }) => x)), label, unit }}
      y={upAxis.value}
      dots={dotsOf(found, { label, unit })}
    >
      {(x, y) => (
        <>
          <Levels x={x} y={y} />
          <Front of={found} x={x} y={y} />
        </>
      )}
    </Chart>
  );
}

function None({ isJudged }: { isJudged: boolean }) {
  return isJudged ? (
    <p class="muted">The trials log no objective, such as a latency, against which their accuracy could be drawn.</p>
  ) : (
    <>
      <p class="muted">No run was evaluated. A tuning tries configs until the accuracy holds:</p>
      <pre>{tuneCommand(readyValue(state.header.value)?.meta)}</pre>
    </>
  );
}

function CompareWithBest() {
  const { best } = scoresOf(readyValue(state.trials.value) ?? [], state.run.value);
  if (!best || best.run === state.run.value) return null;
  return (
    <button
      type="button"
      class="link"
      onClick={() => {
        state.compared.value = [state.run.value, best.run];
        state.view.value = "trials";
      }}
    >
      compare with {best.run} →
    </button>
  );
}
