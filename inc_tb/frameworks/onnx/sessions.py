"""Models that are open, and run with the arrays that they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from os import cpu_count
from typing import Any

import numpy as np
import onnx

from inc_tb.frameworks.onnx.failures import cannot_run
from inc_tb.frameworks.onnx.model import Model
from inc_tb.frameworks.ops import Array, Batch

SIDE_BY_SIDE = 2
"""Sessions that run at the same time, each with its share of the cores: small ops do not parallelize inside."""
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


class Session:
    """A model that is open, with the names of what it takes and gives."""

    def __init__(
        self, model: Model, proto: onnx.ModelProto, *, arena: bool, weights: Mapping[str, Array] | None = None
    ) -> None:
        """`weights` are inputs that are the same in every run."""
        self._weights = weights or {}
        self.outputs = [output.name for output in proto.graph.output]
        self._model = model
        self._session = model.session(proto, threads=max(1, (cpu_count() or 1) // SIDE_BY_SIDE), arena=arena)
        self._inputs = {i.name: _TYPES.get(i.type) for i in self._session.get_inputs()}

    def run(self, feeds: Batch) -> list[Any]:
        """All outputs, for those of the feeds that the model asks for."""
        with np.errstate(over="ignore"):
            given: dict[str, Array] = {
                n: np.asarray(self._weights[n] if n in self._weights else feeds[n], dtype=dtype)
                for n, dtype in self._inputs.items()
            }
        try:
            return list(self._session.run(None, given))
        except Exception as error:  # onnxruntime raises many unrelated classes
            raise cannot_run(self._model.name, error) from error
