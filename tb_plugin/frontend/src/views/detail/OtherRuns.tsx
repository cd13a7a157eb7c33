// The same op in the other trials.

import { useState } from "preact/hooks";
import { formatNumber } from "../../format.ts";
import { type Column, numberAt, rowIndex, textAt } from "../../records.ts";
import * as state from "../../state.ts";

const AT_FIRST = 8;
const COLUMNS = ["added_sqnr_db", "total_sqnr_db", "act_dtype", "weight_dtype"] as const;
const rowsByNames = new WeakMap<object, Map<string, number>>();

export function OtherRuns({ name }: { name: string }) {
  const [all, setAll] = useState(false);
  const runs = state.shownRuns.value.filter(({ kinds }) => kinds.ops).map((run) => run.name);
  if (runs.length < 2) return null;
  const shown = all ? runs : runs.slice(0, AT_FIRST);
  return (
    <section class="d-section" aria-label="The same op in the other trials">
      <h3>The same op in the other trials</h3>
      <table class="d-table">
        <thead>
          <tr>
            <th scope="col">run</th>
            <th scope="col">added here, dB</th>
            <th scope="col">total, dB</th>
            <th scope="col">output</th>
            <th scope="col">weight</th>
          </tr>
        </thead>
        <tbody>
          {shown.map((run) => (
            <RunRow key={run} run={run} name={name} />
          ))}
        </tbody>
      </table>
      {runs.length > shown.length && (
        <button type="button" onClick={() => setAll(true)}>
          Show all {runs.length} runs
        </button>
      )}
    </section>
  );
}

function RunRow({ run, name }: { run: string; name: string }) {
  const names = state.column("name", run);
  const columns = COLUMNS.map((column) => state.column(column, run));
  const link = (
    <th scope="row">
      {run === state.run.value ? (
        <strong>{run}</strong>
      ) : (
        <button type="button" class="link" onClick={() => state.chooseRun(run)}>
          {run}
        </button>
      )}
    </th>
  );
  if (names.state === "error") {
    return (
      <tr>
        {link}
        <td colSpan={4}>{names.message}</td>
      </tr>
    );
  }
  const row = names.state === "ready" ? (rowsOf(names.value).get(name) ?? -1) : -1;
  if (row < 0) {
    return (
      <tr>
        {link}
        <td colSpan={4} class="muted">
          {names.state === "loading" ? "…" : "not in this model"}
        </td>
      </tr>
    );
  }
  const [added, total, output, weight] = columns.map((found) => (found.state === "ready" ? found.value : undefined));
  return (
    <tr>
      {link}
      <td>{formatNumber(numberAt(added, row), "dB")}</td>
      <td>{formatNumber(numberAt(total, row), "dB")}</td>
      <td>{textAt(output, row) || "fp32"}</td>
      <td>{textAt(weight, row) || "–"}</td>
    </tr>
  );
}

/** The rows of a run's ops; many ops of the same run are looked at one after the other. */
function rowsOf(names: Column): Map<string, number> {
  let found = rowsByNames.get(names);
  if (!found) {
    found = rowIndex(names);
    rowsByNames.set(names, found);
  }
  return found;
}
