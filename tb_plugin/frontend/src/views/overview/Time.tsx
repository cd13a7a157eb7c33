// What a run takes in fp32 and in int8.

import { profileCommand } from "../../commands.ts";
import { CopyButton } from "../../components/CopyButton.tsx";
import { formatRatio, formatTime } from "../../format.ts";
import { readyValue } from "../../loadable.ts";
import { totals } from "../../profile.ts";
import type { Rows } from "../../records.ts";
import * as state from "../../state.ts";
import { Card } from "./Card.tsx";

export function Time() {
  const found = state.has("profile") ? readyValue(state.record("profile")) : undefined;
  if (state.has("profile") && !found) return <Card name="Time of a run">…</Card>;
  return (
    <Card name="Time of a run" link="time per op" view="profile">
      {found?.rows.length ? <Bars profile={found} /> : <NotMeasured />}
    </Card>
  );
}

function Bars({ profile: { rows, meta } }: { profile: Rows<"profile"> }) {
  const { wholes, speedup } = totals(rows, meta);
  const longest = Math.max(...wholes.map(({ time }) => time));
  return (
    <>
      {wholes.map(({ model, time }) => (
        <p key={model} class="ov-time">
          <span>{model}</span>
          <span class={`pf-bar ${model}`} style={{ width: `${(100 * time) / longest}%` }} />
          <strong>{formatTime(time)}</strong>
        </p>
      ))}
      {Number.isFinite(speedup) && (
        <p>
          {speedup >= 1
            ? `int8 is ${formatRatio(speedup)} times as fast`
            : `int8 takes ${formatRatio(1 / speedup)} times as long`}
        </p>
      )}
    </>
  );
}

function NotMeasured() {
  const meta = readyValue(state.header.value)?.meta;
  return (
    <p>
      <span class="muted">Not measured yet.</span>{" "}
      <CopyButton label="Copy the command that measures it" text={() => profileCommand(state.run.value, meta)} />
    </p>
  );
}
