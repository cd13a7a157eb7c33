// The drawer with everything about one op.

import { useEffect, useRef } from "preact/hooks";
import { Loading, Problem } from "../components/Status.tsx";
import { map, readyValue } from "../loadable.ts";
import { OK, Verdict } from "../opcolumns.tsx";
import { numberAt, textAt } from "../records.ts";
import * as state from "../state.ts";
import { isBad } from "../worst.ts";
import { Facts } from "./detail/Facts.tsx";
import { OtherRuns } from "./detail/OtherRuns.tsx";
import { ErrorBars, Neighbors } from "./detail/Path.tsx";
import { Tensor } from "./detail/Tensor.tsx";
import { Times } from "./detail/Times.tsx";
import { ToDo } from "./detail/ToDo.tsx";

const WIDTH = 430;
const QUANTIZATION = [
  "act_dtype",
  "act_scheme",
  "act_scale",
  "act_zero_point",
  "weight_dtype",
  "weight_granularity",
  "unit",
];
const EFFECT = [
  "sensitivity",
  "sensitivity_low",
  "sensitivity_high",
  "sensitivity_rank",
  "recovery",
  "sensitivity_gradient",
];
const PLACE = ["arrived_sqnr_db", "added_sqnr_db", "total_sqnr_db", "a_worst_channel_sqnr_db"];

export function OpDetail() {
  const name = state.op.value;
  const drawer = useRef<HTMLElement>(null);
  useEffect(() => {
    if (drawer.current) drawer.current.scrollTop = 0;
  }, [name]);
  return (
    <aside class="drawer" role="region" aria-label={name} ref={drawer}>
      <header class="d-title">
        <h2>{name}</h2>
        <button type="button" class="icon" aria-label="Close" onClick={() => state.openOp("")}>
          ✕
        </button>
      </header>
      <Body name={name} />
    </aside>
  );
}

function Body({ name }: { name: string }) {
  const names = state.column("name");
  if (names.state === "loading") return <Loading what="the op" />;
  if (names.state === "error") return <Problem message={names.message} />;
  const row = state.rowOf.value.get(name);
  if (row === undefined)
    return <p class="muted">This run has no op of this name. Choose another run, or another op.</p>;
  const [type, verdict, reason, clipped, ...place] = ["type", "verdict", "reason", "a_clipped", ...PLACE].map(
    (column) => readyValue(state.column(column)),
  );
  const isAccused =
    ["bad", "watch"].includes(textAt(verdict, row)) || isBad(readyValue(state.column(state.EFFECT)), row);
  const told = textAt(reason, row) || (textAt(verdict, row) === "ok" ? `It ${OK}` : "");
  return (
    <>
      <p>
        <span class="muted">{textAt(type, row)}</span> <Verdict verdict={textAt(verdict, row)} />{" "}
        {state.view.value !== "graph" && (
          <button
            type="button"
            class="link"
            onClick={() => {
              state.view.value = "graph";
            }}
          >
            show in the graph
          </button>
        )}
      </p>
      {told && <p class="d-reason">{told}.</p>}
      <ToDo name={name} />
      {state.isProbed.value && <Facts title="Effect at the output" names={EFFECT} row={row} />}
      <ErrorBars columns={place} row={row} reason={reason} isAccused={isAccused} />
      <Tensors name={name} row={row} clipped={numberAt(clipped, row)} />
      {state.histograms(name).state !== "loading" && (
        <>
          <Facts title="Quantization" names={QUANTIZATION} row={row} />
          <Neighbors name={name} />
          <OtherRuns name={name} />
          <Times name={name} row={row} />
        </>
      )}
    </>
  );
}

const REACH = { output: ["a_min", "a_max"], weight: ["w_min", "w_max"] };

function Tensors({ name, row, clipped }: { name: string; row: number; clipped: number }) {
  const histograms = state.histograms(name);
  const channels = state.channels(name);
  if (histograms.state === "loading") return <Loading what="histograms" />;
  if (histograms.state === "error") return <p class="muted">{histograms.message}</p>;
  const of = (role: string) => histograms.value.find((row) => row.role === role);
  const channelsOf = (role: string) => map(channels, (rows) => rows.find((row) => row.role === role));
  return (
    <>
      {(["output", "weight"] as const).map((role) => (
        <Tensor
          key={role}
          role={role}
          histogram={of(role)}
          channels={channelsOf(role)}
          clipped={role === "output" ? clipped : Number.NaN}
          seen={REACH[role].map((column) => numberAt(readyValue(state.column(column)), row)) as [number, number]}
          width={WIDTH}
        />
      ))}
    </>
  );
}
