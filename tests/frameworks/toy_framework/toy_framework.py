"""A framework of its own, as somebody else would add it: a model is a .toy file, a list of numpy functions as JSON.

    [{"name": "first", "function": "dot", "reads": ["x"], "weights": [[0.5, 2]]}, ...]

In a quantized model a step also has the step of the grid that its weights are on, and that of what it gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import inc_tb.frameworks as inc

INPUT, LARGEST = "x", 127
FUNCTIONS = {
    "dot": lambda step, x: x @ step.array,
    "relu": lambda _, x: np.maximum(x, 0),
    "add": lambda _, x, y: x + y,
}
KEEP = inc.Recipe("toy", "Toy: keep", "toy.quantize(keep=[\n", "    {name}", ",\n", "\n])", "Keeps the ops in fp32.")


@dataclass
class Step:
    name: str
    function: str
    reads: list[str]
    weights: Any = None
    weight_grid: float | None = None
    grid: float | None = None

    @property
    def array(self) -> inc.Array:
        return np.array(self.weights, np.float32)

    def run(self, values: inc.Batch) -> inc.Array:
        found = FUNCTIONS[self.function](self, *(values[name] for name in self.reads))
        return found if self.grid is None else np.clip(np.rint(found / self.grid), -LARGEST, LARGEST) * self.grid


def _grid(step: float | None) -> inc.Quantization | None:
    return None if step is None else inc.Quantization("int8", np.float32([step]), np.int64([0]), -LARGEST, LARGEST)


class ToyAdapter(inc.Adapter):
    framework = "toy"

    def __init__(self, reference: Any, quantized: Any) -> None:
        models = ([Step(**step) for step in json.loads(Path(model).read_text())] for model in (reference, quantized))
        self._steps = list(zip(*models, strict=True))

    def inputs(self) -> Sequence[inc.Input]:
        return [inc.Input(INPUT, np.dtype(np.float32), (None, len(self._steps[0][0].array)))]

    def ops(self) -> Sequence[inc.Op]:
        found = [
            inc.Op(
                own.name, own.function, index, unit=own.name, tensor=own.name,
                inputs=[name for name in own.reads if name != INPUT],
                weight=_grid(their.weight_grid), activation=_grid(their.grid),
            )
            for index, (own, their) in enumerate(self._steps)
        ]  # fmt: skip
        return inc.described(found, wholes={}, missing={})

    def weights(self) -> Iterator[inc.Pair]:
        for own, their in self._steps:
            if own.weights is not None:
                yield inc.Pair(own.name, f"{own.name}.weights", "weight", own.array, their.array, 1)

    def run(self, batch: inc.Batch) -> Iterator[inc.Pair]:
        values, quantized = (inc.fitted(batch, self.inputs()) for _ in range(2))
        for own, their in self._steps:
            alone = their.run(values)
            values[own.name], quantized[own.name] = own.run(values), their.run(quantized)
            yield inc.Pair(own.name, own.name, "output", values[own.name], quantized[own.name], -1)
            yield inc.Pair(own.name, own.name, "isolated", values[own.name], alone, -1)


class ToyFramework(inc.Framework):
    name, title, models, suffixes = "toy", "Toy", ".toy files", (".toy",)
    words: ClassVar = {"dot": "MatMul", "relu": "Relu", "add": "Add"}
    formats = (inc.Format("toy", inc.always(KEEP)), inc.PLAIN)

    def recognizes(self, model: Any) -> bool:
        return isinstance(model, str | Path) and Path(model).suffix == ".toy" and Path(model).is_file()

    def open_pair(self, reference: Any, quantized: Any, *, memory_budget: int) -> inc.Adapter:
        return ToyAdapter(reference, quantized)


FRAMEWORK = ToyFramework()
