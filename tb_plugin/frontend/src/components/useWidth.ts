import type { RefObject } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** The room that an element has sideways, in whole pixels; `first` until it is in the document. */
export function useWidth(first: number, least: number): [RefObject<HTMLDivElement | null>, number] {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(first);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.max(least, Math.floor(entry!.contentRect.width))));
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, [least]);
  return [box, width];
}
