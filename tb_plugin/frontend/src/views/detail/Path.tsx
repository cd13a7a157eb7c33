// Added against arrived error, and the ops on both sides of this one.

import { Loaded } from "../../components/Status.tsx";
import { explained } from "../../components/Tooltip.tsx";
import { withUnit } from "../../format.ts";
import { Help, labelOf } from "../../opcolumns.tsx";
import { type Column, type GraphNode, numberAt, whyNull } from "../../records.ts";
import { makeScale } from "../../scale.ts";
import * as state from "../../state.ts";

const MOST_DB = 60;

interface ErrorProps {
  columns: (Column | undefined)[];
  row: number;
  reason: Column | undefined;
  /** Whether its verdict, or what it does to the output, is not ok: then nothing of it looks healthy. */
  isAccused: boolean;
}

export function ErrorBars({ columns, row, reason, isAccused }: ErrorProps) {
  const known = columns.filter((column) => column !== undefined);
  return (
    <section class="d-section" aria-label="Where the error comes from">
      <h3>Where the error comes from</h3>
      {known.map((column) => (
        <Bar key={column.spec.name} column={column} row={row} reason={reason} isAccused={isAccused} />
      ))}
      <p class="muted">
        Signal to noise: longer is better, the mark is where normal begins. “Added here” is what this op does to correct
        inputs, and may make it a culprit; gray is what came with its inputs, or has come together by then.
      </p>
    </section>
  );
}

function Bar({ column, row, reason, isAccused }: Omit<ErrorProps, "columns"> & { column: Column }) {
  const value = numberAt(column, row);
  const normal = column.spec.normal?.[0] ?? 0;
  const isInherited = makeScale(column.spec, [value])?.inherited;
  const color = isInherited ? "inherited" : value < normal ? "low" : isAccused ? "accused" : "";
  const width = `${Math.max(0, Math.min(1, value / MOST_DB)) * 100}%`;
  return (
    <div class="d-db" {...explained(<Help spec={column.spec} />)}>
      <span>{labelOf(column.spec).replace(/^output /, "")}</span>
      {Number.isNaN(value) ? (
        <span class="d-db-none muted">{whyNull(column, row, reason) || "–"}</span>
      ) : (
        <>
          <span class="d-db-track">
            <span class={`d-db-bar ${color}`} style={{ width }} />
            <span class="d-db-normal" style={{ left: `${(normal / MOST_DB) * 100}%` }} />
          </span>
          <span class="d-db-value">{withUnit(value, "dB")}</span>
        </>
      )}
    </div>
  );
}

export function Neighbors({ name }: { name: string }) {
  return (
    <section class="d-section" aria-label="Edge">
      <h3>Its edge</h3>
      <Loaded of={state.record("graph")} what="the graph">
        {({ rows }) => {
          const found = neighbors(rows, name);
          return (
            <>
              <Links title="reads from" names={found.producers} none="the model's input" />
              <Links title="read by" names={found.consumers} none="nobody: it is an output of the model" />
            </>
          );
        }}
      </Loaded>
    </section>
  );
}

function Links({ title, names, none }: { title: string; names: string[]; none: string }) {
  return (
    <p>
      <span class="muted">{title}</span>{" "}
      {names.length
        ? names.map((name) => (
            <button key={name} type="button" class="link" onClick={() => state.openOp(name)}>
              {name}
            </button>
          ))
        : none}
    </p>
  );
}

function neighbors(rows: GraphNode[], name: string): { producers: string[]; consumers: string[] } {
  return {
    producers: [...new Set(rows.find((node) => node.name === name)?.inputs)],
    consumers: rows.filter(({ inputs }) => inputs.includes(name)).map((node) => node.name),
  };
}
