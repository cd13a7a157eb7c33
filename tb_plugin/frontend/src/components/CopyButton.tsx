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
  const [told, setTold] = useState("");
  const press = async () => {
    setTold((await copy(text())) ? "Copied" : "The browser does not allow it");
    setTimeout(() => setTold(""), 2000);
  };
  return (
    <span class="copy">
      <button type="button" onClick={press} disabled={disabled}>
        {label}
      </button>
      <span class="done" role="status">
        {told}
      </span>
    </span>
  );
}
