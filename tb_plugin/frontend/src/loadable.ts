// Every piece of data is one of three things, and a view has to say what it shows for each.

export type Loadable<T> = { state: "loading" } | { state: "error"; message: string } | { state: "ready"; value: T };

export const LOADING: Loadable<never> = { state: "loading" };

export function ready<T>(value: T): Loadable<T> {
  return { state: "ready", value };
}

export function failed(message: string): Loadable<never> {
  return { state: "error", message };
}

export function readyValue<T>(loadable: Loadable<T>): T | undefined {
  return loadable.state === "ready" ? loadable.value : undefined;
}

/** Ready when all are; else the first error, else loading. */
export function all<T>(parts: Loadable<T>[]): Loadable<T[]> {
  const error = parts.find((part) => part.state === "error");
  if (error) return error as Loadable<never>;
  if (parts.some((part) => part.state === "loading")) return LOADING;
  return ready(parts.map((part) => (part as { value: T }).value));
}

export function map<T, U>(loadable: Loadable<T>, change: (value: T) => U): Loadable<U> {
  return loadable.state === "ready" ? ready(change(loadable.value)) : loadable;
}
