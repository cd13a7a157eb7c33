import { useState } from "preact/hooks";
import { copy } from "../csv.ts";

export function CopyButton({
  label,
  text,
  disabled = false,
}: {
  label: string;
  text: () => string;
  disabled?: boolean;
}) {
  const [done, setDone] = useState(false);
  const press = async () => {
    await copy(text());
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return (
    <>
      <button type="button" onClick={press} disabled={disabled}>
        {label}
      </button>
      <span class="done" role="status">
        {done ? "Copied" : ""}
      </span>
    </>
  );
}
