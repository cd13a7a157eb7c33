// Tables as text for spreadsheets.

import { type Column, numberAt, textAt } from "./records.ts";

export function toCsv(columns: Column[], rows: Iterable<number>): string {
  const lines = [columns.map(({ spec }) => quoted(spec.name)).join(",")];
  for (const row of rows) {
    lines.push(
      columns.map((column) => quoted(column.kind === "text" ? textAt(column, row) : written(column, row))).join(","),
    );
  }
  return `${lines.join("\r\n")}\r\n`;
}

function written(column: Column, row: number): string {
  const value = numberAt(column, row);
  return Number.isNaN(value) ? "" : exactText(column, value);
}

/** The shortest text that stands for just this number: float32's 0.1 is not 0.10000000149011612. */
export function exactText(column: Column, value: number): string {
  if (column.kind !== "number" || !(column.values instanceof Float32Array)) return String(value);
  for (let digits = 6; digits < 9; digits++) {
    const text = String(Number(value.toPrecision(digits)));
    if (Math.fround(Number(text)) === value) return text;
  }
  return String(value);
}

function quoted(text: string): string {
  // A leading = + - @ would be run as a formula by spreadsheets, unless it is a number.
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export function download(name: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Whether the text is on the clipboard now. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // TensorBoard is often opened over plain HTTP, where browsers offer the old way only.
    const focused = document.activeElement;
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    if (focused instanceof HTMLElement) focused.focus();
    return isDone;
  }
}
