import { Popover } from "./Popover.tsx";

interface Props {
  label: string;
  options: string[];
  chosen: string[];
  onChange: (chosen: string[]) => void;
}

/** A button that opens a list to tick. Nothing ticked means everything. */
export function Multiselect({ label, options, chosen, onChange }: Props) {
  const button = chosen.length
    ? `${label}: ${chosen.length > 2 ? `${chosen.length} chosen` : chosen.join(", ")}`
    : label;
  return (
    <Popover label={button} name={label}>
      {options.map((option) => (
        <label key={option} class="check">
          <input
            type="checkbox"
            checked={chosen.includes(option)}
            onChange={(event) => {
              const rest = chosen.filter((other) => other !== option);
              onChange(event.currentTarget.checked ? [...rest, option] : rest);
            }}
          />
          {option}
        </label>
      ))}
      {chosen.length > 0 && (
        <button type="button" onClick={() => onChange([])}>
          Show all
        </button>
      )}
    </Popover>
  );
}
