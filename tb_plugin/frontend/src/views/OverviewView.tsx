// The answer on one screen: what is lost, why, what to do first, and where to look further.

import { Loaded, Loading } from "../components/Status.tsx";
import * as state from "../state.ts";
import { Cure } from "./overview/Cure.tsx";
import { isReady } from "./overview/data.ts";
import { Head } from "./overview/Head.tsx";
import { Time } from "./overview/Time.tsx";
import { Tradeoff } from "./overview/Tradeoff.tsx";
import { Worst } from "./overview/Worst.tsx";

export function OverviewView() {
  return (
    <Loaded of={state.header.value} what="the overview">
      {() =>
        isReady.value ? (
          <section class="view ov" aria-label="Overview">
            <Head />
            <div class="ov-cards">
              <Cure />
              <div class="ov-aside">
                <Tradeoff />
                <Time />
              </div>
              <Worst />
            </div>
          </section>
        ) : (
          <Loading what="the overview" />
        )
      }
    </Loaded>
  );
}
