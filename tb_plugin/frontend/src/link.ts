// What of the page the link holds, as text and back. Pure functions.

export interface SortKey {
  column: string;
  descending: boolean;
}

export interface Filter {
  text: string;
  regex: boolean;
  types: string[];
  verdicts: string[];
}

export interface Matrix {
  difference: boolean;
  changed: boolean;
  text: string;
  sort: SortKey[];
}

/** Everything that a link brings back. */
export interface Shown {
  view: string;
  run: string;
  /** null is the newest. */
  step: number | null;
  op: string;
  filter: Filter;
  /** null is worst first. */
  sort: SortKey[] | null;
  compared: string[];
  /** Empty where none was chosen. */
  metric: string;
  paint: string;
  matrix: Matrix;
}

export const LARGEST_FIRST: SortKey[] = [{ column: "largest", descending: true }];
/** How many runs the heat map of ops by trials takes. */
export const MOST_COMPARED = 20;

/** Of the views, the first is the one that opens without being named. */
export function queryOf(shown: Shown, views: readonly string[]): URLSearchParams {
  const { view, filter, compared, matrix, metric } = shown;
  const query = new URLSearchParams();
  const put = (key: string, value: string) => value && query.set(key, value);
  put("view", view === views[0] ? "" : view);
  put("run", shown.run);
  put("step", shown.step === null ? "" : String(shown.step));
  put("op", shown.op);
  put("filter", filter.text);
  put("regex", filter.regex ? "1" : "");
  put("types", listText(filter.types));
  put("verdicts", listText(filter.verdicts));
  put("sort", shown.sort === null ? "" : sortText(shown.sort) || "none");
  put("compare", listText(compared));
  if (compared.length) {
    put("difference", matrix.difference ? "1" : "");
    put("changed", matrix.changed ? "1" : "");
    put("ops", matrix.text);
    put("order", matrix.sort === LARGEST_FIRST ? "" : sortText(matrix.sort) || "graph");
  }
  put("metric", metric);
  put("paint", shown.paint);
  return query;
}

export function shownBy(query: URLSearchParams, views: readonly string[]): Shown {
  const text = (key: string) => query.get(key) ?? "";
  const step = Number.parseInt(text("step"), 10);
  const [sort, order] = [text("sort"), text("order")];
  return {
    view: views.includes(text("view")) ? text("view") : (views[0] ?? ""),
    run: text("run"),
    step: Number.isNaN(step) ? null : step,
    op: text("op"),
    filter: {
      text: text("filter"),
      regex: text("regex") === "1",
      types: listOf(text("types")),
      verdicts: listOf(text("verdicts")),
    },
    sort: sort === "none" ? [] : sort ? sortOf(sort) : null,
    compared: [...new Set(listOf(text("compare")))].slice(0, MOST_COMPARED),
    metric: text("metric"),
    paint: text("paint"),
    matrix: {
      difference: text("difference") === "1",
      changed: text("changed") === "1",
      text: text("ops"),
      sort: order === "graph" ? [] : order ? sortOf(order) : LARGEST_FIRST,
    },
  };
}

/** One key for a list: TensorBoard keeps only the last of several equal ones. */
function listText(values: string[]): string {
  return values.map(encodeURIComponent).join("|");
}

function listOf(text: string): string[] {
  const decode = (part: string) => {
    try {
      return [decodeURIComponent(part)];
    } catch {
      return []; // a link that somebody typed
    }
  };
  return text.split("|").filter(Boolean).flatMap(decode);
}

function sortText(keys: SortKey[]): string {
  return keys.map(({ column, descending }) => (descending ? "-" : "") + column).join(",");
}

function sortOf(text: string): SortKey[] {
  const keys = text.split(",").filter(Boolean);
  return keys.map((key) => ({ column: key.replace(/^-/, ""), descending: key.startsWith("-") }));
}
