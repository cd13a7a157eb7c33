"""The op table: what is measured about each op, as columns that describe themselves.

Measures of one pair of arrays are in metrics.py; here is what else a row holds. To add a column of another kind: put it
into the list that it belongs to, with a function of a Measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from inc_tb.frameworks.ops import Op
from inc_tb.measure.metrics import ALL_ZERO, CAUSES, CHANNELS, ERRORS, VALUES, PairCompute, sqnr_db
from inc_tb.measure.natural import NATURAL_SLACK_DB, WATCH_DB, usual
from inc_tb.measure.stats import PairStats
from inc_tb.records import Cell, Column, OpTable, short_repr


@dataclass
class Measurement:
    """Everything measured about one op."""

    __repr__ = short_repr

    op: Op
    weight: PairStats | None = None
    output: PairStats | None = None
    isolated: PairStats | None = None
    arrived: list[PairStats] = field(default_factory=list)
    """Statistics of the values that the op reads."""


class Verdict(NamedTuple):
    """What is to be thought of an op."""

    verdict: str = ""
    """ok, watch or bad; "" where nothing can be said."""
    reason: str = ""


Compute = Callable[[Measurement], Cell]
_NOT_PROBED = "needs a probe of the outputs, which has not run"
_NOT_PROFILED = "needs a profile, which has not run"


def arrived_sqnr_db(m: Measurement) -> Cell:
    if not m.arrived:
        return "nothing that is compared reaches this op"
    power = sum(stats.total("x2") for stats in m.arrived)
    noise = sum(stats.total("e2") for stats in m.arrived)
    if power <= 0:
        return ALL_ZERO
    return 10 * math.log10(power / noise) if noise > 0 else "what reaches this op has no error"


def _missing(m: Measurement) -> str:
    return m.op.note or "not measured"


def _of_output(compute: PairCompute) -> Compute:
    return lambda m: compute(m.output, m.op.activation) if m.output is not None else _missing(m)


def _of_weight(compute: PairCompute) -> Compute:
    return lambda m: compute(m.weight, m.op.weight) if m.weight is not None else _no_weight(m)


def _no_weight(m: Measurement) -> str:
    return "this op has no weight to compare" if not m.op.note else m.op.note


def _of_isolated(compute: PairCompute) -> Compute:
    return lambda m: compute(m.isolated, m.op.activation) if m.isolated is not None else _missing(m)


def _because(reason: str) -> Compute:
    return lambda _: reason


def _act_number(which: str) -> Compute:
    def compute(m: Measurement) -> Cell:
        found = None if m.op.activation is None else getattr(m.op.activation, which)
        if found is None or not found.size:
            return "the output is not quantized with a fixed scale"
        return float(found.flat[0])

    return compute


_NOISE = Column("", unit="dB", better="higher", normal=(25, None))
_EFFECT = Column("", unit="ratio", better="lower", normal=(0, 0.003))
_PLACE: Sequence[tuple[Column, Compute]] = (
    (Column("index", label="#", unit="position", help="Position in the graph, from the input."),
     lambda m: float(m.op.index)),
    (Column("act_scale", label="step", unit="value", help="Distance between two neighboring quantized values of "
            "the output."), _act_number("scale")),
    (Column("act_zero_point", label="zero point", unit="integer", help="The integer that stands for 0.0."),
     _act_number("zero_point")),
)  # fmt: skip
_ADDED_AND_ARRIVED: Sequence[tuple[Column, Compute]] = (
    (replace(_NOISE, name="added_sqnr_db", label="added here",
             help="SQNR of the output when the op gets the correct fp32 inputs: what its own quantization (inputs, "
                  "weights, output) does. The lowest ones are the culprits; healthy int8 has over 25."),
     _of_isolated(sqnr_db)),
    (replace(_NOISE, name="arrived_sqnr_db", label="arrived",
             help="SQNR of what the op reads: error made upstream."), arrived_sqnr_db),
    (replace(_NOISE, name="total_sqnr_db", label="total",
             help="SQNR of the output in the quantized model: added and arrived error together."),
     _of_output(sqnr_db)),
)  # fmt: skip
_AT_THE_OUTPUT_AND_COST: Sequence[tuple[Column, Compute]] = (
    (replace(_EFFECT, name="sensitivity", label="sensitivity",
             help="Error of the model's output when only this unit is quantized, relative to how much the output "
                  "varies between samples. 0.003 is 25 dB; at 1 the output says nothing any more."),
     _because(_NOT_PROBED)),
    (replace(_EFFECT, name="sensitivity_low", label="sensitivity, low end",
             help="Lower end of the sensitivity's 95 % interval, by resampling the samples."),
     _because(_NOT_PROBED)),
    (replace(_EFFECT, name="sensitivity_high", label="sensitivity, high end",
             help="Upper end of the sensitivity's 95 % interval, by resampling the samples."),
     _because(_NOT_PROBED)),
    (Column("recovery", label="recovery", unit="share",
            help="Share of the output's error that goes away when this unit alone goes back to fp32. Negative: it "
                 "gets worse, because errors had been cancelling. Near 0 for one end of a bad tensor: both ends "
                 "must change."), _because(_NOT_PROBED)),
    (Column("sensitivity_gradient", label="gradient score", unit="nats", better="lower", normal=(0, 0.01),
            help="Kullback-Leibler divergence of the model's output from fp32's that the op's own error is "
                 "expected to cause, from one backward pass; no labels are needed. An estimate for small errors: "
                 "the sensitivity is measured. PyTorch only."), _because(_NOT_PROBED)),
    (Column("time_fp32_us", label="time fp32", unit="µs", better="lower",
            help="Median time in the fp32 model, with what its runtime has fused into the op."),
     _because(_NOT_PROFILED)),
    (Column("time_int8_us", label="time int8", unit="µs", better="lower",
            help="Median time when quantized, with what the runtime has fused into the op, without conversion."),
     _because(_NOT_PROFILED)),
    (Column("convert_us", label="conversion", unit="µs", better="lower",
            help="Median time of quantizing, dequantizing and reordering on the op's account."),
     _because(_NOT_PROFILED)),
    (Column("speedup", label="speed-up", unit="ratio", better="higher", normal=(1, None),
            help="Time in fp32 over time in int8 with conversion. Below 1 the op got slower, and keeping it in "
                 "fp32 saves time. Only where the two can be told apart from noise."), _because(_NOT_PROFILED)),
    (Column("params", label="parameters", unit="count", help="Numbers in the op's main weight."),
     lambda m: float(m.op.params)),
)  # fmt: skip


def _of_pairs() -> Iterator[tuple[Column, Compute]]:
    """The measures of metrics.py, of weights and of outputs."""
    sides = (("w", "weight", _of_weight), ("a", "output", _of_output))
    for prefix, what, of in sides:
        for name, label, text, value_of in VALUES:
            column = Column(name, label=label, unit="value", help=text.format(what=what))
            yield _prefixed(prefix, what, column), of(value_of)
    for table in (ERRORS, CHANNELS):
        for prefix, what, of in sides:
            yield from ((_prefixed(prefix, what, column), of(compute)) for column, compute in table)
    yield from ((_prefixed("a", "output", column), _of_output(compute)) for column, compute in CAUSES)


def _prefixed(prefix: str, label: str, column: Column) -> Column:
    return replace(column, name=f"{prefix}_{column.name}", label=f"{label} {column.label}")


_NUMBERS = (*_PLACE, *_of_pairs(), *_ADDED_AND_ARRIVED, *_AT_THE_OUTPUT_AND_COST)
_TEXTS: Mapping[str, tuple[str, str, Callable[[Measurement], str]]] = {
    "name": ("op", "Name of the op in the fp32 model.", lambda m: m.op.name),
    "type": ("type", "Kind of operation.", lambda m: m.op.type),
    "module": ("module", "PyTorch module, Keras layer or MXNet symbol that the op is part of.", lambda m: m.op.module),
    "block": ("block", "Part of the model that the op belongs to.", lambda m: m.op.block),
    "unit": ("unit", "Ops with the same unit change precision together.", lambda m: m.op.unit),
    "weight_dtype": ("weight type", "Type of the quantized weight; empty for fp32.",
                     lambda m: m.op.weight.dtype if m.op.weight else ""),
    "weight_granularity": ("weight scales", "One scale for the tensor, for each channel, or for each block.",
                           lambda m: m.op.weight.granularity if m.op.weight else ""),
    "act_dtype": ("output type", "Type of the quantized output; empty for fp32.",
                  lambda m: m.op.activation.dtype if m.op.activation else ""),
    "act_scheme": ("output scheme", "Symmetric or asymmetric around zero, or dynamic: chosen for each batch.",
                   lambda m: m.op.activation.scheme if m.op.activation else ""),
    "sensitivity_rank": ("rank", "Rank by sensitivity; 2–4 where the samples do not tell these ranks apart.",
                         lambda m: ""),
}  # fmt: skip
_LAST = {
    "verdict": ("verdict", "ok; watch: worse than usual; bad: named by a suggestion."),
    "reason": ("reason", "Why the verdict, or why there are no numbers."),
}

COLUMNS: Sequence[Column] = [
    *(Column(name, type="text", label=label, help=text) for name, (label, text, _) in _TEXTS.items()),
    *(column for column, _ in _NUMBERS),
    *(Column(name, type="text", label=label, help=text) for name, (label, text) in _LAST.items()),
]


def text_columns(measurements: Sequence[Measurement], names: Sequence[str]) -> dict[str, list[str]]:
    """Some columns of the table, for those who need them before there is one."""
    return {name: [_TEXTS[name][2](m) for m in measurements] for name in names}


def op_table(measurements: Sequence[Measurement], verdicts: Mapping[str, Verdict]) -> OpTable:
    rows: list[dict[str, Cell]] = []
    for m in measurements:
        row: dict[str, Cell] = {name: text(m) for name, (_, _, text) in _TEXTS.items()}
        row.update(verdicts[m.op.name]._asdict())
        row.update({column.name: compute(m) for column, compute in _NUMBERS})
        rows.append(row)
    return OpTable.from_rows(_for_formats(measurements), rows)


def _for_formats(measurements: Sequence[Measurement]) -> Sequence[Column]:
    """The columns, with the normal ranges of a model whose weights have few bits."""
    most = usual((m.op.weight, m.weight) for m in measurements if m.op.weight is not None and m.weight is not None)
    if most is None or most.sqnr_db - NATURAL_SLACK_DB >= WATCH_DB:
        return COLUMNS
    least = most.sqnr_db - NATURAL_SLACK_DB
    noise = 10 ** (-least / 10)
    text = f"In this model's format weights of a bell shape have {most.sqnr_db:.0f} dB."
    of: Mapping[tuple[float | None, float | None] | None, tuple[float | None, float | None]] = {
        (WATCH_DB, None): (round(least, 1), None), (15, None): (round(least - WATCH_DB + 15, 1), None),
        (0, 0.003): (0, round(noise, 4)), (0.998, 1): (round(1 - noise / 2, 3), 1),
    }  # fmt: skip
    known = {column.name for column in COLUMNS if column.unit == "dB" or column.name.endswith(("_nmse", "_cosine"))}
    return [
        replace(c, normal=of[c.normal], help=f"{c.help} {text}") if c.name in known and c.normal in of else c
        for c in COLUMNS
    ]
