import { withUnit } from "../format.ts";
import { labelOf } from "../opcolumns.tsx";
import type { ColumnSpec } from "../records.ts";
import { colorOf, type Scale } from "../scale.ts";

const STEPS = [0.05, 0.25, 0.5, 0.75, 1];

/** What the colors of a column mean. */
export function Legend({ spec, scale }: { spec: ColumnSpec; scale: Scale | null }) {
  if (!scale) return null;
  const [best, worst] = scale.ends;
  const bar = `linear-gradient(90deg, ${STEPS.map((level) => colorOf(level, scale.inherited)).join(", ")})`;
  const sign = spec.better === "higher" ? "≥" : "≤";
  return (
    <span class="legend" title={scale.inherited ? "gray: may have been made by ops before it" : undefined}>
      <span class="muted">{labelOf(spec)}:</span>
      <span>{scale.normal ? `normal ${sign} ${withUnit(best, spec.unit)}` : withUnit(best, spec.unit)}</span>
      <span class="legend-bar" style={{ background: bar }} aria-hidden="true" />
      <span>
        {best === worst ? "nothing outside" : `${spec.better === "higher" ? "≤" : "≥"} ${withUnit(worst, spec.unit)}`}
      </span>
    </span>
  );
}
