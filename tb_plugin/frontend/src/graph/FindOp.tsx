// A search box that suggests ops by the words of their names.

import { useState } from "preact/hooks";
import { plural } from "../format.ts";
import { matcher } from "../order.ts";
import type { Op, Tree } from "./group.ts";

const MOST_SUGGESTED = 12;

export function FindOp({ tree, onChoose }: { tree: Tree; onChoose: (op: Op) => void }) {
  const [text, setText] = useState("");
  const [isOpen, setIsOpen] = useState(false);
  const [at, setAt] = useState(0);
  const matches = matcher({ text, regex: false }) as (name: string) => boolean;
  const isAsked = isOpen && text.trim() !== "";
  const all = isAsked ? tree.ops.filter(({ name }) => matches(name)) : [];
  const suggested = all.slice(0, MOST_SUGGESTED);
  const choose = (op: Op) => {
    setText(op.name);
    setIsOpen(false);
    onChoose(op);
  };
  const onKey = (event: KeyboardEvent) => {
    const count = suggested.length;
    if (event.key === "Escape") {
      if (isOpen) event.stopPropagation();
      setIsOpen(false);
    } else if (event.key === "Enter" && suggested[at]) choose(suggested[at]);
    else if (event.key === "ArrowDown" && count) setAt((at + 1) % count);
    else if (event.key === "ArrowUp" && count) setAt((at + count - 1) % count);
    else return;
    event.preventDefault();
  };
  return (
    <div class="graph-find">
      <input
        type="search"
        aria-label="Find op"
        placeholder="find an op"
        autocomplete="off"
        aria-autocomplete="list"
        aria-controls="graph-found"
        aria-activedescendant={suggested[at] ? `graph-found-${suggested[at].index}` : undefined}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setIsOpen(true);
          setAt(0);
        }}
        onFocus={(event) => event.currentTarget.select()}
        onBlur={() => setIsOpen(false)}
        onKeyDown={onKey}
      />
      <div class="graph-found">
        <div id="graph-found" role="listbox" aria-label="Found ops" hidden={!suggested.length}>
          {suggested.map((op, i) => (
            // biome-ignore lint/a11y/useKeyWithClickEvents: the search box has the keyboard
            <div
              key={op.id}
              id={`graph-found-${op.index}`}
              role="option"
              aria-selected={i === at}
              // The box must keep the focus, or its list is gone before the click.
              onPointerDown={(event) => event.preventDefault()}
              onClick={() => choose(op)}
            >
              <span class="graph-found-name">{op.name}</span> <span class="muted">{op.type}</span>
            </div>
          ))}
        </div>
        <div class="muted" role="status">
          {isAsked && (all.length > MOST_SUGGESTED || !all.length) ? summary(all.length) : ""}
        </div>
      </div>
    </div>
  );
}

function summary(count: number): string {
  return count ? `the first ${MOST_SUGGESTED} of ${plural(count, "op")}` : "no op has these words in its name";
}
