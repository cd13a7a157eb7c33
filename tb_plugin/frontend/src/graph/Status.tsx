// What the picture says besides itself: that it is being laid out, that this failed, how much is seen.

import { plural } from "../format.ts";
import { notice, picture, retry, stop, work } from "./model.ts";

/** A layout that is not there after this is worth a word and a way out. */
export function WorkStatus() {
  const now = work.value;
  if (now.state === "failed") return <Failed message={now.message} />;
  return (
    <div class={`graph-work${picture.value ? "" : " alone"}`} role="status">
      {now.state === "busy" && (
        <span class="graph-busy">
          <span class="spinner" aria-hidden="true" /> Laying out {plural(now.items, "node")}…{" "}
          <button type="button" onClick={stop}>
            Stop
          </button>
        </span>
      )}
    </div>
  );
}

function Failed({ message }: { message: string }) {
  return (
    <div class="graph-failed" role="alert">
      <p>
        <strong>The graph could not be laid out.</strong> {message}
      </p>
      <p>
        The layout runs in <code>elk-worker.js</code> beside this page. Try again; if it fails again, check that your
        network lets that file through, or look at the same ops in the Ops tab.
      </p>
      <button type="button" onClick={retry}>
        Try again
      </button>
    </div>
  );
}

export function Seen({ ops }: { ops: number }) {
  const seen = picture.value?.visible.items;
  const groups = seen?.filter((item) => item.kind === "group" && !picture.value?.open.has(item.id)).length ?? 0;
  const shownOps = seen?.filter(({ kind }) => kind === "op").length ?? 0;
  return (
    <span class="muted" role="status">
      {seen && `${shownOps.toLocaleString("en")} of ${plural(ops, "op")} drawn`}
      {groups > 0 && `, the others in ${plural(groups, "closed group")}`}
    </span>
  );
}

export function Notice() {
  return notice.value ? (
    <p class="note" role="alert">
      {notice.value}
    </p>
  ) : null;
}
