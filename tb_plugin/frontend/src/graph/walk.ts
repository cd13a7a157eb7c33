import type { Item, Visible } from "./group.ts";

/** Where a key leads from an item; null stays, undefined is no key of ours. */
export function neighbor(
  key: string,
  from: string,
  { items, edges }: Visible,
  open: ReadonlySet<string>,
): Item | null | undefined {
  const at = items.findIndex(({ id }) => id === from);
  switch (key) {
    case "ArrowDown":
      return (open.has(from) ? items[at + 1] : edges.find((edge) => edge.from.id === from)?.to) ?? null;
    case "ArrowUp":
      return edges.find((edge) => edge.to.id === from)?.from ?? items[at]?.parent ?? null;
    case "ArrowRight":
      return items[at + 1] ?? null;
    case "ArrowLeft":
      return items[at - 1] ?? null;
    case "Home":
      return items[0] ?? null;
    case "End":
      return items.at(-1) ?? null;
    default:
      return undefined;
  }
}
