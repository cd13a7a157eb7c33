"""The reference with the roundings of the quantized model, each of which can be switched on and off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from inc_tb.adapters.torch.adapter import TorchAdapter, feeds
from inc_tb.adapters.torch.gradient import gradient_scores
from inc_tb.adapters.torch.sites import Sites
from inc_tb.adapters.torch.state import undisturbed
from inc_tb.adapters.torch.trace import Call, call, swapped
from inc_tb.adapters.torch.values import is_real, main_tensor, outputs_of, plain, to_numpy, with_main
from inc_tb.capture import Array, Batch, Input, Outputs, Site, Unit

_SOFTMAX = {"softmax", "Softmax", "log_softmax", "LogSoftmax"}


class TorchSwitches:
    framework = "torch"

    def __init__(self, reference: Any, quantized: Any) -> None:
        self.adapter = TorchAdapter(reference, quantized)
        self.notes: list[str] = []
        self.units: Sequence[Unit] = ()
        self.sites: Sequence[Site] = ()
        self._sites: Sites | None = None

    @property
    def inputs(self) -> Sequence[Input]:
        return self.adapter.inputs()

    def trace(self, batch: Batch) -> None:
        if self._sites is None:
            self.adapter.trace(batch)
            with undisturbed(*self.adapter.models), torch.no_grad():
                self._sites = Sites(self.adapter.matching, self.adapter.runners[0].modules)
            self.units, self.sites = self._sites.units, self._sites.all
            self.notes.extend(self._sites.notes)

    def run(self, batch: Batch, on: Collection[str]) -> Outputs:
        self.trace(batch)
        assert self._sites is not None
        reference = self.adapter.models[0]
        rounding, chosen = self._sites.rounding, frozenset(on)
        results = {at: how for site, (at, how) in rounding.results.items() if site in chosen}
        before_softmax = self._before_softmax()
        scores: dict[str, Tensor] = {}

        def visit(made: Call) -> Any:
            value, how = made.value, results.get(made.name)
            if how is not None and (tensor := main_tensor(value)) is not None:
                value = with_main(value, how(plain(tensor)).to(tensor.dtype))
            if made.name in before_softmax and (tensor := main_tensor(value)) is not None:
                scores[before_softmax[made.name]] = tensor
            return value

        given = feeds(reference, batch)
        for site, (name, how) in rounding.inputs.items():
            if site in chosen:
                given[name] = how(given[name])
        with undisturbed(*self.adapter.models), torch.no_grad(), swapped(self._replaced(chosen)):
            value = self.adapter.runners[0].run(given, visit)
        found = [to_numpy(tensor) for tensor in outputs_of(value)]
        own = [to_numpy(tensor) for tensor in scores.values()]
        return Outputs(own if len(own) == len(found) else found, found)

    def gradients(self, batch: Batch) -> Mapping[str, npt.NDArray[np.float64]]:
        self.trace(batch)
        return gradient_scores(self.adapter, batch)

    def run_real(self, batch: Batch) -> list[Array]:
        model = self.adapter.models[1]
        with undisturbed(model), torch.no_grad():
            return [to_numpy(tensor) for tensor in outputs_of(call(model, feeds(model, batch)))]

    def _before_softmax(self) -> Mapping[str, str]:
        """The call in front of each softmax that the model ends with."""
        trace = self.adapter.traces[0]
        found = {}
        for index in trace.outputs:
            step = trace.steps[index]
            if step.kind in _SOFTMAX and len(step.sources) == 1:
                found[trace.steps[step.sources[0]].name] = step.name
        return found

    def _replaced(self, on: Collection[str]) -> list[tuple[dict[str, Any], str, Any]]:
        assert self._sites is not None
        rounding = self._sites.rounding
        found: list[tuple[dict[str, Any], str, Any]] = []
        for site, (module, weight) in rounding.weights.items():
            if site in on:
                found.append((module._parameters, "weight", nn.Parameter(weight, requires_grad=False)))
        for site, (module, twin) in rounding.modules.items():
            if site in on:
                found.append((module.__dict__, "forward", _as_if(module, twin)))
        for site, (module, how) in rounding.reads.items():
            if site in on:
                found.append((module.__dict__, "forward", _reading(module, how)))
        return found


def _as_if(module: nn.Module, twin: nn.Module) -> Callable[..., Any]:
    """The twin's forward in the types of the module that it stands for."""
    own = next((p.dtype for p in module.parameters() if p.dtype.is_floating_point), None)
    theirs = next((p.dtype for p in twin.parameters() if p.dtype.is_floating_point and type(p) is nn.Parameter), own)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if own == theirs:
            return twin(*args, **kwargs)
        cast = [a.to(theirs) if isinstance(a, Tensor) and is_real(a) else a for a in args]
        value = twin(*cast, **kwargs)
        tensor = main_tensor(value)
        return value if tensor is None else with_main(value, tensor.to(own))

    return forward


def _reading(module: nn.Module, how: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    own = type(module).forward

    def forward(value: Any, *args: Any, **kwargs: Any) -> Any:
        return own(module, how(value) if isinstance(value, Tensor) else value, *args, **kwargs)

    return forward
