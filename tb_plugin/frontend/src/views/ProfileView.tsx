// What each op costs in time, in both models or in one.

import { useMemo } from "preact/hooks";
import { profileCommand, profileInPython } from "../commands.ts";
import { Empty, Loaded } from "../components/Status.tsx";
import { plural } from "../format.ts";
import { readyValue } from "../loadable.ts";
import { entries, modelsOf, rowWith, totals } from "../profile.ts";
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
  const models = useMemo(() => modelsOf(rows), [rows]);
  const chosen = useMemo(() => rowWith(rows, state.op.value), [rows, state.op.value]);
  const open = (row: number) => {
    const { op, ops = [] } = rows[row]!;
    const known = [op, ...ops].find((name) => state.opNames.value.has(name));
    if (known) state.openOp(known);
  };
  const ops = rows.filter(({ op }) => op).length;
  const fused = rows.reduce((sum, row) => sum + (row.ops?.length ?? 0), 0);
  return (
    <section class="view pf" aria-label="Profile">
      <Summary found={sums} meta={meta} />
      <Timeline rows={rows} chosen={chosen} onOpen={open} />
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
          {fused > 0 && `, ${fused} more fused into them`}
        </span>
        <span class="spacer" />
        <span class="pf-key" aria-hidden="true">
          {[...models, ...(models.includes("int8") ? ["conversion"] : [])].map((what) => (
            <span key={what}>
              <span class={`pf-bar ${what}`} /> {what}
            </span>
          ))}
        </span>
      </div>
      <TimeGrid
        found={found}
        by={by}
        models={models}
        error={error}
        chosen={by === "op" ? chosen : -1}
        onOpen={(entry) => by === "op" && open(entry)}
      />
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

function NoProfile() {
  const meta = readyValue(state.header.value)?.meta;
  return (
    <Empty title={`${state.run.value} holds no times`}>
      <p>Measure each op in both models:</p>
      <pre>{profileCommand(state.run.value, meta)}</pre>
      <p>Or in Python:</p>
      <pre>{profileInPython(state.run.value, readyValue(state.header.value)?.meta)}</pre>
      <p>LOGDIR is the folder that TensorBoard watches. Leave the second model out to time one alone.</p>
    </Empty>
  );
}
