// Numbers as people read them, by the unit of their column.

const exponent = new Intl.NumberFormat("en", { notation: "scientific", maximumSignificantDigits: 3 });
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, useGrouping: false });
const whole = new Intl.NumberFormat("en");

export function formatNumber(value: number, unit = ""): string {
  if (!Number.isFinite(value)) return "–";
  switch (unit) {
    case "dB":
      return value.toFixed(1);
    case "share":
      return value === 0 ? "0 %" : `${digits.format(value * 100)} %`;
    case "count":
    case "integer":
    case "index":
    case "position":
      return whole.format(value);
    case "bytes":
      return formatBytes(value);
    case "µs":
      return formatTime(value);
    default: {
      const size = Math.abs(value);
      if (value !== 0 && (size < 1e-3 || size >= 1e6)) return exponent.format(value).replace("E", "e");
      return digits.format(value);
    }
  }
}

export function formatBytes(bytes: number): string {
  const size = Math.abs(bytes);
  if (size < 1000) return `${digits.format(bytes)} B`;
  if (size < 1e6) return `${digits.format(bytes / 1e3)} kB`;
  return size < 1e9 ? `${digits.format(bytes / 1e6)} MB` : `${digits.format(bytes / 1e9)} GB`;
}

export function formatTime(us: number): string {
  if (!Number.isFinite(us)) return "–";
  const [size, unit] = timeUnit(us);
  return `${digits.format(us / size)} ${unit}`;
}

/** Measured ratios and times are not known to more digits than these. */
const rough = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, useGrouping: false });

export function formatRatio(ratio: number): string {
  return rough.format(ratio);
}

export function formatRoughTime(us: number): string {
  const [size, unit] = timeUnit(us);
  return `${rough.format(us / size)} ${unit}`;
}

function timeUnit(us: number): [size: number, unit: string] {
  const size = Math.abs(us);
  return size < 1000 ? [1, "µs"] : size < 1e6 ? [1e3, "ms"] : [1e6, "s"];
}

/** An interval of differences in time, with one unit for both ends. */
export function formatInterval(low: number, high: number): string {
  const [size, unit] = timeUnit(Math.max(Math.abs(low), Math.abs(high)));
  const [from, to] = [low, high].map((us) => signed(us / size, digits.format));
  return `between ${from} and ${to} ${unit}`;
}

/** With its unit where the number does not carry it already. */
export function withUnit(value: number, unit = ""): string {
  const text = formatNumber(value, unit);
  return !Number.isFinite(value) ||
    ["share", "bytes", "µs", "", "ratio", "value", "count", "integer", "index", "position"].includes(unit)
    ? text
    : `${text} ${unit}`;
}

/** Four decimals for accuracies and losses, unless the number is larger than any share. */
export function formatScore(value: number): string {
  if (!Number.isFinite(value)) return "–";
  return Math.abs(value) < 10 ? value.toFixed(4) : value.toFixed(2);
}

/** With its sign, as differences have it; what rounds to zero has none, as nothing changed that could be seen. */
export function signed(value: number, format: (size: number) => string): string {
  const text = format(Math.abs(value));
  return Number.isNaN(value) || Number.parseFloat(text) === 0 ? text : `${value > 0 ? "+" : "−"}${text}`;
}

export function formatRange(normal: [number | null, number | null], unit = ""): string {
  const [low, high] = normal;
  if (low !== null && high !== null) return `${withUnit(low, unit)} to ${withUnit(high, unit)}`;
  return low !== null ? `${withUnit(low, unit)} or more` : `${withUnit(high ?? Number.NaN, unit)} or less`;
}

/** The end of a name tells more than its beginning. */
export function shorten(name: string, most: number): string {
  return name.length <= most ? name : `…${name.slice(1 - most)}`;
}

/** The beginning tells the place and the end the op: what is left out is between them. */
export function shortenMiddle(name: string, most: number): string {
  if (name.length <= most) return name;
  const end = Math.ceil((most - 1) * 0.6);
  return `${name.slice(0, most - 1 - end)}…${name.slice(name.length - end)}`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${whole.format(count)} ${count === 1 ? one : many}`;
}

export function listed(names: string[], most = 5): string {
  return names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
}
