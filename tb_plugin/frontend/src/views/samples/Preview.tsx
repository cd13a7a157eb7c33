// What a sample looks like: a picture, the outline of a sound, or the beginning of a text.

import type { Preview as Stored } from "../../records.ts";
import { outline } from "../../samples.ts";

const HEIGHT = 100;

export function Preview({ of, isLarge = false }: { of: Stored; isLarge?: boolean }) {
  const name = `Sample ${of.sample}: ${of.input}`;
  const size = isLarge ? "sm-large" : "sm-small";
  if (of.kind === "text") return <span class={`sm-text ${size}`}>{of.text}</span>;
  if (of.kind === "image") return <img class={size} alt={name} src={`data:image/png;base64,${of.data}`} />;
  const parts = outline(of.data ?? "");
  return (
    <svg
      class={`sm-sound ${size}`}
      role="img"
      aria-label={name}
      viewBox={`0 0 ${parts.length} ${HEIGHT}`}
      preserveAspectRatio="none"
    >
      {parts.map(({ low, high }, i) => (
        <rect key={i} x={i} width={1} y={(HEIGHT / 2) * (1 - high)} height={Math.max(1, (HEIGHT / 2) * (high - low))} />
      ))}
    </svg>
  );
}
