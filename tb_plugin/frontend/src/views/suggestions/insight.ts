import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

/** Whether an element has been in sight, so that what is far down does not ask for its data at once. */
export function useInSight<T extends Element>(): [RefObject<T | null>, boolean] {
  const element = useRef<T>(null);
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    if (seen || !element.current) return;
    const watch = new IntersectionObserver((entries) => setSeen(entries.some((entry) => entry.isIntersecting)));
    watch.observe(element.current);
    return () => watch.disconnect();
  }, [seen]);
  return [element, seen];
}
