import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

/** A button with something that opens below it; Escape or a click elsewhere closes it. */
export function Popover({ label, name, children }: { label: string; name: string; children: ComponentChildren }) {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const [left, setLeft] = useState(0);
  useLayoutEffect(() => {
    const content = box.current?.lastElementChild?.getBoundingClientRect();
    const anchor = button.current?.getBoundingClientRect();
    if (open && content && anchor) setLeft(Math.min(0, window.innerWidth - 12 - content.width - anchor.left));
  }, [open]);
  useEffect(() => {
    if (!open) return;
    const close = (event: Event) => {
      if (event instanceof KeyboardEvent && event.key !== "Escape") return;
      if (event.type === "pointerdown" && box.current?.contains(event.target as Node)) return;
      setOpen(false);
      if (event instanceof KeyboardEvent) button.current?.focus();
    };
    document.addEventListener("pointerdown", close);
    document.addEventListener("keydown", close);
    return () => {
      document.removeEventListener("pointerdown", close);
      document.removeEventListener("keydown", close);
    };
  }, [open]);
  return (
    <div class="popover" ref={box}>
      <button type="button" ref={button} aria-expanded={open} onClick={() => setOpen(!open)}>
        {label} <span aria-hidden="true">▾</span>
      </button>
      {open && (
        <div class="popover-box" role="group" aria-label={name} style={{ left: `${left}px` }}>
          {children}
        </div>
      )}
    </div>
  );
}
