// What goes wrong inside stays inside: the rest of the page works on.

import { Component, type ComponentChildren, type ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Loading, Problem } from "./Status.tsx";

export class Boundary extends Component<{ children: ComponentChildren }, { message: string | null }> {
  override state = { message: null };

  static override getDerivedStateFromError(error: unknown) {
    return { message: error instanceof Error ? error.message : String(error) };
  }

  override render() {
    if (this.state.message === null) return this.props.children;
    return (
      <Problem
        message={`Something in it was not expected: ${this.state.message}. Choose another run or op, or reload.`}
      />
    );
  }
}

/** A view whose code is fetched when it is shown for the first time. */
export function Later({ load, what }: { load: () => Promise<ComponentType>; what: string }) {
  const [found, setFound] = useState<{ view: ComponentType } | { failed: true } | null>(null);
  useEffect(() => {
    load().then(
      (view) => setFound({ view }),
      () => setFound({ failed: true }),
    );
  }, [load]);
  if (!found) return <Loading what={what} />;
  if ("failed" in found) {
    return (
      <Problem message="Its code could not be fetched: inc-tb was updated, or TensorBoard has ended. Reload the page." />
    );
  }
  return <found.view />;
}
