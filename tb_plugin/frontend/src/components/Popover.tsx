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
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", close);
    return () => document.removeEventListener("pointerdown", close);
  }, [open]);
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: Escape closes it from anywhere inside
    <div
      class="popover"
      ref={box}
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !open) return;
        event.stopPropagation(); // and nothing else
        setOpen(false);
        button.current?.focus();
      }}
    >
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
