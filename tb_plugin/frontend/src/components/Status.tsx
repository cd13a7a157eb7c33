// What is shown instead of data: loading, nothing there, something wrong. Each says what to do.

import type { ComponentChildren } from "preact";
import type { Loadable } from "../loadable.ts";
import { reload } from "../state.ts";

export function Loading({ what }: { what: string }) {
  return (
    <div class="status" role="status">
      <span class="spinner" aria-hidden="true" /> Loading {what}…
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="status">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Problem({ message }: { message: string }) {
  return (
    <div class="status problem" role="alert">
      <p>
        <strong>This cannot be shown.</strong> {message}
      </p>
      <button type="button" onClick={() => void reload()}>
        Try again
      </button>
    </div>
  );
}

/** Shows the value when it is there, else what is the matter. */
export function Loaded<T>(props: { of: Loadable<T>; what: string; children: (value: T) => ComponentChildren }) {
  const { of, what, children } = props;
  if (of.state === "loading") return <Loading what={what} />;
  if (of.state === "error") return <Problem message={of.message} />;
  return <>{children(of.value)}</>;
}
