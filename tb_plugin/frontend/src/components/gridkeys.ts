// What clicks and keys do in a grid: move, open, select, copy.

export interface Selectable {
  /** In the order in which they are shown. */
  rows: ArrayLike<number>;
  /** Row on which the keyboard stands, or -1. */
  active: number;
  onActive: (row: number) => void;
  onOpen?: (row: number) => void;
  selected?: ReadonlySet<number>;
  onSelect?: (rows: ReadonlySet<number>) => void;
  onCopy?: () => void;
}

export function onClick(event: MouseEvent, props: Selectable, row: number, index: number): void {
  const { rows, active, selected, onSelect, onActive, onOpen } = props;
  if ((event.target as Element).closest("a, button, input, label")) return;
  if (onSelect && (event.ctrlKey || event.metaKey)) {
    onSelect(toggled(selected ?? new Set(), row));
    onActive(row);
  } else if (onSelect && event.shiftKey && active >= 0) {
    onSelect(between(rows, indexOf(rows, active), index));
  } else {
    onActive(row);
    onOpen?.(row);
  }
}

export function onKey(event: KeyboardEvent, props: Selectable, place: number, page: number): void {
  const { rows, onActive, onOpen, onSelect, onCopy, active, selected } = props;
  if (event.target !== event.currentTarget) return;
  const moves: Record<string, number> = {
    ArrowDown: place + 1,
    ArrowUp: place - 1,
    PageDown: place + page,
    PageUp: place - page,
    Home: 0,
    End: rows.length - 1,
  };
  const control = event.ctrlKey || event.metaKey;
  if (event.key in moves && rows.length) {
    const next = Math.max(0, Math.min(rows.length - 1, moves[event.key]!));
    if (event.shiftKey && onSelect)
      onSelect(new Set([...(selected ?? []), ...between(rows, Math.max(0, place), next)]));
    onActive(rows[next]!);
  } else if (event.key === "Enter" && active >= 0) onOpen?.(active);
  else if (event.key === " " && active >= 0 && onSelect) onSelect(toggled(selected ?? new Set(), active));
  else if (event.key === "a" && control && onSelect) onSelect(between(rows, 0, rows.length - 1));
  else if (event.key === "c" && control && onCopy && !getSelection()?.toString()) onCopy();
  else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    (event.currentTarget as Element).scrollBy({ left: event.key === "ArrowRight" ? 120 : -120 });
  } else return;
  event.preventDefault();
}

export function indexOf(rows: ArrayLike<number>, row: number): number {
  return Array.prototype.indexOf.call(rows, row);
}

function between(rows: ArrayLike<number>, a: number, b: number): Set<number> {
  const found = new Set<number>();
  for (let i = Math.min(a, b); i <= Math.max(a, b); i++) found.add(rows[i]!);
  return found;
}

function toggled(set: ReadonlySet<number>, row: number): Set<number> {
  const changed = new Set(set);
  if (!changed.delete(row)) changed.add(row);
  return changed;
}
