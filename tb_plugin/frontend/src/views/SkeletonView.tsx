// A view to begin a new one with: copy this file, rename it, list it in views/index.ts, and it is a tab. This one is
// listed nowhere; test/views.test.ts renders it.

import { Empty, Loaded } from "../components/Status.tsx";
import { textAt } from "../records.ts";
import * as state from "../state.ts";

export function SkeletonView() {
  // A view asks for its data where it shows it, and follows along when the run or the step changes. It never fetches.
  const names = state.column("name");
  return (
    // Without a value this says why: it is loading, or there is an error and something to do about it.
    <Loaded of={names} what="the ops">
      {(column) =>
        column.kind === "text" && column.codes.length ? (
          // The name of a region or a list is what a screen reader says, and what a browser test looks for.
          <section class="view" aria-label="Skeleton">
            <ul aria-label="All ops">
              {Array.from(column.codes, (_, row) => textAt(column, row)).map((name) => (
                <li key={name}>
                  <button type="button" class="link" onClick={() => state.openOp(name)}>
                    {name}
                  </button>
                </li>
              ))}
            </ul>
          </section>
        ) : (
          <Empty title="The model has no ops" />
        )
      }
    </Loaded>
  );
}
