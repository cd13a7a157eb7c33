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
  if (Number.isNaN(value)) return "";
  return column.kind === "number" && column.values instanceof Float32Array
    ? String(Number(value.toPrecision(7)))
    : String(value);
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

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // TensorBoard is often opened over plain HTTP, where browsers offer the old way only.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
