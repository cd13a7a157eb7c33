// One node of the picture: an op, a closed group, or the frame of an open one.

import { useLayoutEffect, useRef } from "preact/hooks";
import { explained, hideTooltip } from "../components/Tooltip.tsx";
import { plural, shorten } from "../format.ts";
import { labelOf } from "../opcolumns.tsx";
import type { Group, Item } from "./group.ts";
import { active, goTo, takesFocus, toggle } from "./model.ts";
import type { Mark, Paint } from "./paint.ts";
import { type Box, LONGEST_LABEL, LONGEST_VALUE, NODE_HEIGHT } from "./picture.ts";

/** How an item stands to the selected op. */
export type Role = "" | "selected" | "around" | "producer" | "consumer";

const ROLE_TEXTS: Record<Role, string> = {
  "": "",
  selected: "selected",
  around: "contains the selected op",
  producer: "producer of the selected op",
  consumer: "consumer of the selected op",
};

interface Props {
  item: Item;
  box: Box;
  paint: Paint | null;
  role: Role;
  isOpen: boolean;
  isActive: boolean;
  onChoose: (item: Item) => void;
}

export function GraphItem({ item, box, paint, role, isOpen, isActive, onChoose }: Props) {
  const button = useRef<HTMLButtonElement>(null);
  const mark = paint?.markOf(item) ?? null;
  useLayoutEffect(() => {
    if (!isActive || !takesFocus.value) return;
    takesFocus.value = false;
    button.current?.focus({ preventScroll: true });
  });
  const name = nameOf(item, paint, mark, role);
  const isPlain = mark !== null && !mark.text;
  return (
    <div
      class={`graph-item ${item.kind} ${role}${isOpen ? " open" : ""}${isPlain ? " none" : ""}`}
      style={placed(box, mark)}
    >
      {/* Beside the button, not in it: the button's name says more than fits here, and in other words. */}
      <div class="graph-face" aria-hidden="true">
        <span class="graph-label">{shorten(item.label, LONGEST_LABEL)}</span>
        <span class="graph-value">
          <Value item={item} mark={mark} />
        </span>
      </div>
      <button
        ref={button}
        type="button"
        class="graph-node"
        tabIndex={isActive ? 0 : -1}
        aria-label={name}
        aria-expanded={item.kind === "group" ? isOpen : undefined}
        aria-current={role === "selected" ? "true" : undefined}
        data-item={item.id}
        {...explained(<Explanation item={item} paint={paint} mark={mark} />)}
        onFocus={(event) => {
          // Not for the mouse: a node that moves while it is pressed gets no click.
          if (event.currentTarget.matches(":focus-visible")) goTo(item, false);
          else active.value = item.id;
        }}
        onClick={(event) => {
          hideTooltip();
          // A click of the keyboard has no detail: Enter opens a group at once, the mouse needs two clicks.
          if (item.kind === "op") onChoose(item);
          else if (event.detail === 0) toggle(item);
        }}
        onDblClick={() => item.kind === "group" && toggle(item)}
      />
      {item.kind === "group" && <Toggle group={item} isOpen={isOpen} />}
    </div>
  );
}

/** A node seen from afar, for the mouse only; the keyboard stands on a real one. */
export function Speck({ item, box, paint, onChoose }: Pick<Props, "item" | "box" | "paint" | "onChoose">) {
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: not for the keyboard
    // biome-ignore lint/a11y/useKeyWithClickEvents: not for the keyboard
    <div
      class="graph-item graph-speck"
      style={placed(box, paint?.markOf(item) ?? null)}
      title={item.kind === "op" ? item.name : item.label}
      onClick={() => onChoose(item)}
      onDblClick={() => item.kind === "group" && toggle(item)}
    />
  );
}

function placed(box: Box, mark: Mark | null) {
  return {
    transform: `translate(${box.x}px, ${box.y}px)`,
    width: `${box.width}px`,
    height: `${NODE_HEIGHT}px`,
    ...(mark?.color ? { "--graph-color": mark.color } : {}),
  };
}

function Toggle({ group, isOpen }: { group: Group; isOpen: boolean }) {
  return (
    <button
      type="button"
      class="graph-toggle"
      tabIndex={-1}
      aria-label={`${isOpen ? "Collapse" : "Expand"} ${group.label}`}
      onClick={() => {
        hideTooltip();
        toggle(group);
      }}
    >
      {isOpen ? "−" : "+"}
    </button>
  );
}

function Value({ item, mark }: { item: Item; mark: Mark | null }) {
  const what = item.kind === "op" ? item.type : plural(item.ops, "op");
  const text = mark && (shorten(mark.text, LONGEST_VALUE) || "–");
  const isVerdictToo = mark?.verdict === mark?.text;
  return (
    <>
      {what}
      {text && text !== what && ` · ${mark.worst ? "worst " : ""}${text}`}
      {!isVerdictToo && (mark?.verdict === "bad" || mark?.verdict === "watch") && (
        <>
          {" "}
          <strong>{mark.verdict}</strong>
        </>
      )}
    </>
  );
}

function nameOf(item: Item, paint: Paint | null, mark: Mark | null, role: Role): string {
  const isWorst = item.kind === "group" && mark?.worst ? "worst " : "";
  const label = paint ? labelOf(paint.spec) : "";
  const value = mark && (mark.text ? `${isWorst}${label} ${mark.text}` : `${label} has no value`);
  const verdict =
    mark?.verdict && mark.verdict !== mark.text
      ? `${item.kind === "group" ? "worst verdict " : ""}${mark.verdict}`
      : "";
  const what = item.kind === "op" ? [item.name, item.type] : [`Group ${item.label}`, plural(item.ops, "op")];
  return [...what, value, verdict, ROLE_TEXTS[role]].filter(Boolean).join(", ");
}

function Explanation({ item, paint, mark }: { item: Item; paint: Paint | null; mark: Mark | null }) {
  return (
    <>
      <strong class="graph-full">{item.kind === "op" ? item.name : item.label}</strong>
      <p class="muted">
        {item.kind === "op" ? item.type : `${plural(item.ops, "op")}; double-click or Enter opens and closes the group`}
      </p>
      {paint && mark && (
        <p>
          {labelOf(paint.spec)}: {mark.text || `no value${mark.missing ? ` (${mark.missing})` : ""}`}
          {mark.worst && `, the worst of its ops, at ${mark.worst.name}`}
        </p>
      )}
    </>
  );
}
