// What accuracy costs, and how it went from trial to trial.

import { judged } from "../../trials.ts";
import { Progress } from "./Progress.tsx";
import { Tradeoff } from "./Tradeoff.tsx";

export function Charts() {
  if (!judged.value.length) return null;
  return (
    <div class="trials-charts">
      <Tradeoff />
      <Progress />
    </div>
  );
}
