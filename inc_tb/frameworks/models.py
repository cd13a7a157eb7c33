"""What can be asked of any model, given as a path or as an object, whatever its framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from inc_tb.frameworks.boundary import reading_models
from inc_tb.frameworks.language import Language
from inc_tb.frameworks.memory import default_budget
from inc_tb.frameworks.ops import Array, Batch, Input
from inc_tb.frameworks.protocols import Adapter, Quantizer, Switchable, Timer
from inc_tb.frameworks.registry import framework_of, framework_of_both
from inc_tb.records import GraphNode


def loaded(model: Any) -> Any:
    """A path of a framework whose models are objects as such an object; anything else as it is."""
    if not isinstance(model, str | PathLike):
        return model
    framework = framework_of(model)
    return framework.load_stored(Path(model)) if framework.can("load_stored") else model


def open_pair(
    reference: Any, quantized: Any, *, memory_budget: int | None = None, batch_size: int | None = None
) -> Adapter:
    """The adapter for a reference and its quantized model, which runs `batch_size` samples at once, or what fits."""
    framework = framework_of_both(reference, quantized, "compare")
    budget = default_budget() if memory_budget is None else memory_budget
    with reading_models(reference, quantized):
        adapter = framework.open_pair(reference, quantized, memory_budget=budget)
    adapter.samples_at_once = batch_size
    return adapter


def open_switches(reference: Any, quantized: Any) -> Switchable:
    """The same pair as one model whose quantization can be switched on and off."""
    framework = framework_of_both(reference, quantized, "probe")
    with reading_models(reference, quantized):
        return framework.open_switches(reference, quantized)


def name_twins(reference: Any, quantized: Any, batch: Batch) -> dict[str, list[str]]:
    """Op of the quantized model -> ops of the reference that it stands for."""
    framework = framework_of_both(reference, quantized, "compare")
    with reading_models(reference, quantized):
        return framework.name_twins(reference, quantized, batch)


def open_timer(model: Any, batch: Batch, threads: int | None = None, like: Any = None) -> Timer:
    """`batch` is like those that it will be run with; without `threads` the runtime decides.

    `like` is a model whose ops are ops here, too, whatever is inside of them.
    """
    with reading_models(model):
        return framework_of(model).open_timer(model, batch, threads, like)


def open_language(model: Any) -> Language:
    """A language model whose matrices can be rounded one by one."""
    with reading_models(model):
        return framework_of(model).open_language(model)


def default_quantizer(model: Any, settings: Mapping[str, Any] | None = None) -> Quantizer:
    """The tool of the model's own framework; it may be told the `settings` of a trial that it has made."""
    framework = framework_of(model)
    known = {name for tool in framework.tools[:1] for name in tool.prepares_by}
    return framework.make_quantizer({name: value for name, value in (settings or {}).items() if name in known})


def quantize_to_ranges(model: Any, ranges: Mapping[str, tuple[float, float]]) -> Any:
    """The model as the tool of its framework quantizes it to these ranges of its tensors."""
    with reading_models(model):
        return framework_of(model).quantize_to_ranges(model, ranges)


def read_inputs(model: Any) -> Sequence[Input]:
    """What a model takes."""
    with reading_models(model):
        return framework_of(model).read_inputs(model)


def open_results(model: Any) -> Callable[[Batch], list[Array]]:
    """A function that gives the results of a model, run with the kernels that ship."""
    with reading_models(model):
        run = framework_of(model).open_results(model)

    def results(batch: Batch) -> list[Array]:
        with reading_models(model):
            return run(batch)

    return results


def digest_model(model: Any) -> str:
    """The same for the same model only."""
    with reading_models(model):
        return framework_of(model).digest_model(model)


def is_same(one: Any, other: Any) -> bool:
    """Whether two models of one framework hold the same, as far as that can be told."""
    if (
        isinstance(one, str | PathLike)
        and isinstance(other, str | PathLike)
        and Path(one).resolve() == Path(other).resolve()
    ):
        return True
    framework = framework_of_both(one, other, "compare")
    with reading_models(one, other):
        return one is other or framework.is_same(one, other)


def measure_size(model: Any) -> float:
    """Kilobytes that a model takes on disk, or its parameters and buffers in memory."""
    with reading_models(model):
        return framework_of(model).measure_size(model)


def save_model(model: Any, target: Path) -> None:
    """Where it can be loaded from again; a model that is an object in the form that its framework has for that."""
    framework_of(model).save_model(model, target)


def read_graph(model: Any) -> list[GraphNode]:
    """The ops of one model and what they read."""
    with reading_models(model):
        return framework_of(model).read_graph(model)
