import { labelOf } from "../opcolumns.tsx";
import type { ColumnSpec } from "../records.ts";

/** Columns as the options of a select. */
export function ColumnOptions({ specs }: { specs: ColumnSpec[] }) {
  return (
    <>
      {specs.map((spec) => (
        <option key={spec.name} value={spec.name}>
          {labelOf(spec)}
          {spec.unit && ` (${spec.unit})`}
        </option>
      ))}
    </>
  );
}
