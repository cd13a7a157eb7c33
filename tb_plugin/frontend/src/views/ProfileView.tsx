// What each op costs in time, in both models.

import { useMemo } from "preact/hooks";
import { Empty, Loaded } from "../components/Status.tsx";
import { plural } from "../format.ts";
import { entries, totals } from "../profile.ts";
import { type NumberColumn, numberAt, type Rows } from "../records.ts";
import * as state from "../state.ts";
import { filter, grouping } from "./profile/controls.ts";
import { Summary } from "./profile/Summary.tsx";
import { TimeGrid } from "./profile/TimeGrid.tsx";
import { Timeline } from "./profile/Timeline.tsx";

const ERROR = "added_sqnr_db";

export function ProfileView() {
  if (!state.has("profile")) return <NoProfile />;
  return (
    <Loaded of={state.record("profile")} what="the times">
      {(found) => (found.rows.length ? <Profile key={state.run.value} profile={found} /> : <NoProfile />)}
    </Loaded>
  );
}

function Profile({ profile }: { profile: Rows<"profile"> }) {
  const { rows, meta } = profile;
  const by = grouping.value;
  const error = errorColumn();
  const { rowOf } = state;
  const found = useMemo(
    () => entries(rows, by, (op) => (error ? numberAt(error, rowOf.value.get(op) ?? -1) : Number.NaN)),
    [rows, by, error, rowOf.value],
  );
  const sums = useMemo(() => totals(rows, meta), [rows, meta]);
  const open = (op: string) => {
    if (state.opNames.value.has(op)) state.openOp(op);
  };
  const ops = rows.filter(({ op }) => op).length;
  return (
    <section class="view pf" aria-label="Profile">
      <Summary found={sums} meta={meta} />
      <Timeline rows={rows} onOpen={open} />
      <div class="toolbar">
        <GroupBy />
        <input
          type="search"
          aria-label="Filter times"
          placeholder="words of the name or type"
          value={filter.value}
          onInput={(event) => {
            filter.value = event.currentTarget.value;
          }}
        />
        <span class="muted">
          {plural(ops, "op")}
          {by === "type" && ` of ${plural(found.filter(({ name }) => name).length, "type")}`}
        </span>
        <span class="spacer" />
        <span class="pf-key" aria-hidden="true">
          <span class="pf-bar fp32" /> fp32 <span class="pf-bar int8" /> int8 <span class="pf-bar convert" /> conversion
        </span>
      </div>
      <TimeGrid found={found} by={by} error={error} onOpen={open} />
    </section>
  );
}

/** null where the run holds times only, or the column is not there (yet). */
function errorColumn(): NumberColumn | null {
  if (!state.has("ops")) return null;
  const column = state.column(ERROR);
  return column.state === "ready" && column.value.kind === "number" ? column.value : null;
}

function GroupBy() {
  return (
    <div class="pf-switch" role="group" aria-label="Time per">
      {(["op", "type"] as const).map((one) => (
        <button
          key={one}
          type="button"
          aria-pressed={grouping.value === one}
          onClick={() => {
            grouping.value = one;
          }}
        >
          By {one}
        </button>
      ))}
    </div>
  );
}

const SNIPPET = `import inc_tb
from inc_tb.records import ProfileRow, Span

rows = [
    ProfileRow("/conv1/Conv", "Conv", fp32_us=310.0, int8_us=120.0, convert_us=14.0,
               spans=[Span("fp32", 0, 0.0, 310.0), Span("int8", 0, 0.0, 120.0)]),
    ProfileRow("", fp32_us=25.0, int8_us=31.0),  # what no op accounts for
]
with inc_tb.SummaryWriter("LOGDIR/RUN") as writer:
    writer.add_profile(rows, meta={"runs": 50, "fp32_total_us": 335.0, "int8_total_us": 165.0})`;

function NoProfile() {
  return (
    <Empty title={`${state.run.value} holds no times`}>
      <p>
        Measure each op in both models with your runtime's profiler and log the medians; <code>inc-tb profile</code> is
        not part of this version yet.
      </p>
      <pre>{SNIPPET.replace("RUN", state.run.value)}</pre>
    </Empty>
  );
}
