"""Two models and data in, a diagnosis out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from inc_tb.advise.judge import judge
from inc_tb.data import is_one_batch, open_data
from inc_tb.frameworks.models import open_pair
from inc_tb.frameworks.ops import Array, Op
from inc_tb.frameworks.protocols import Adapter
from inc_tb.frameworks.registry import describe
from inc_tb.measure.collect import Progress, by_op, collect, collect_with_others
from inc_tb.measure.details import details_of
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.op_table import op_table
from inc_tb.measure.shards import Collected


def diagnose(
    reference: Any,
    quantized: Any,
    batches: str | PathLike[str] | Mapping[str, Array] | Array | Iterable[Any],
    *,
    memory_budget: int = 1 << 30,
    distributed: bool = False,
    progress: Progress | None = None,
) -> Diagnosis:
    """Compare a quantized model with its reference, op by op.

    Models are paths or objects; for a PyTorch model in quantization-aware training the reference may be None, which is
    the same model without its fake quantization. `batches` yields mappings from input name to array (or plain arrays
    for a model with one input); one batch by itself, or a path as for `--data`, works too. Only one batch is held,
    and its intermediate arrays are fetched in several passes where they exceed `memory_budget` bytes.
    With `distributed` every process of torch.distributed calls this with its own shard of the batches, and all get the
    diagnosis of the whole. `progress` is called with the number of samples done so far.
    """
    adapter = open_pair(reference, quantized, memory_budget=memory_budget)
    if isinstance(batches, str | PathLike):
        batches = open_data(batches, adapter.inputs(), adapter.batch_size())
    elif is_one_batch(batches):
        batches = [batches]
    names = "the same without fake quantization" if reference is None else describe(reference), describe(quantized)
    return diagnose_adapted(adapter, batches, names=names, distributed=distributed, progress=progress)


def diagnose_adapted(
    adapter: Adapter,
    batches: Iterable[Any],
    *,
    names: tuple[str, str],
    distributed: bool = False,
    progress: Progress | None = None,
) -> Diagnosis:
    """The same for models that are open already; `names` are what the log calls them."""
    collected, samples = (collect_with_others if distributed else collect)(adapter, batches, progress)
    ops = adapter.ops()
    measurements = by_op(ops, collected)
    suggestions, verdicts = judge(measurements, adapter.framework)
    return Diagnosis(
        op_table(measurements, verdicts),
        suggestions,
        *details_of(ops, collected),
        *names,
        adapter.framework,
        samples,
        [*adapter.notes, *_notes(ops, collected)],
    )


def _notes(ops: Sequence[Op], collected: Collected) -> list[str]:
    """What the reader should know before believing the numbers."""
    notes = []
    if all(op.weight is None and op.activation is None for op in ops):
        notes.append("nothing is quantized in the second model; expected the fp32 model first, then the quantized one")
    worst = max((s.total("nonfinite_x") for s in collected.values()), default=0.0)
    if worst:
        notes.append(f"the fp32 model has up to {worst:.0f} NaN or infinite values in one tensor; they are left out")
    return notes
