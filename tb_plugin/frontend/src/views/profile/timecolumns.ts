// The columns of the table of times, by op or by type, of one model or of both.

import type { GridColumn } from "../../components/Grid.tsx";
import { type Grouping, type Model, mainOf } from "../../profile.ts";

const HELP = {
  op: "Name of the op; a click opens it. Fused: the runtime runs other ops as part of it, whose names are in the cell's tooltip.",
  type: "Type of op.",
  types: "Type of op; times are sums over its ops.",
  count: "How many ops of this type have a time.",
  bars: "Above the time in fp32, below that in int8; the hatched part is conversion. All bars share one scale.",
  bar: "The time as a bar. All bars share one scale.",
  fp32: "Time in the fp32 model; the 95th percentile is in the cell's tooltip.",
  int8: "Time in the quantized model without conversion; the 95th percentile is in the cell's tooltip.",
  convert: "Quantizing, dequantizing and reordering around it.",
  difference:
    "int8 with conversion minus fp32: above 0 it got slower. The 95 % interval is in the cell's tooltip. Inside the noise: the two cannot be told apart.",
  speedup: "fp32 over int8 with conversion; below 1 it got slower.",
  share: { fp32: "Its part of all fp32 time.", int8: "Its part of all int8 time, with conversion." },
  cumulative: "Its share and that of everything that takes longer.",
  added: "The harm it does: signal to noise when only its own quantization is at work. 25 dB or more is normal.",
  worst: "The harm they do: the lowest added SQNR among the ops of this type. 25 dB or more is normal.",
};

export function gridColumns(by: Grouping, models: Model[], withError: boolean): GridColumn[] {
  const text = (id: string, label: string, width: number, help: string, heads = false): GridColumn => ({
    id,
    label,
    width,
    help,
    description: help,
    ...(heads ? { heads, pinned: true } : {}),
  });
  const number = (id: string, label: string, unit: string, width: number, help: string): GridColumn => ({
    id,
    label,
    unit,
    width,
    help,
    description: help,
    align: "right",
  });
  const first =
    by === "op"
      ? [text("name", "op", 236, HELP.op, true), text("type", "type", 152, HELP.type)]
      : [text("name", "type", 180, HELP.types, true), number("count", "ops", "count", 70, HELP.count)];
  const last =
    by === "op"
      ? number("added", "added SQNR", "dB", 108, HELP.added)
      : number("added", "worst added SQNR", "dB", 160, HELP.worst);
  const main = mainOf(models);
  const ofMain = `of ${main} time`;
  const median = by === "op" ? "median" : "of medians";
  const isPair = models.length > 1;
  const bars = isPair ? text("time", "fp32 and int8", 132, HELP.bars) : text("time", "time", 132, HELP.bar);
  return [
    ...first,
    { ...bars, unit: "bars" },
    ...(isPair
      ? [
          number("difference", "difference", "int8 − fp32", 126, HELP.difference),
          number("speedup", "speed-up", "ratio", 84, HELP.speedup),
        ]
      : []),
    ...models.map((model) => number(model, model, median, 88, HELP[model])),
    ...(models.includes("int8") ? [number("convert", "conversion", median, 96, HELP.convert)] : []),
    number("share", "share", ofMain, 92, HELP.share[main]),
    number("cumulative", "cumulative", ofMain, 98, HELP.cumulative),
    ...(withError ? [last] : []),
  ];
}
