"""The reference with the roundings of the quantized model, each of which can be switched on and off."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from inc_tb.frameworks.edges import before_softmax
from inc_tb.frameworks.ops import Array, Batch, Input, Site, Unit
from inc_tb.frameworks.protocols import Outputs, Switchable
from inc_tb.frameworks.torch.adapter import TorchAdapter
from inc_tb.frameworks.torch.arguments import call, feeds, said
from inc_tb.frameworks.torch.gradient import gradient_scores
from inc_tb.frameworks.torch.grids import Rounder
from inc_tb.frameworks.torch.sites import Sites
from inc_tb.frameworks.torch.state import undisturbed
from inc_tb.frameworks.torch.steps import Call
from inc_tb.frameworks.torch.values import is_real, main_tensor, outputs_of, plain, to_numpy, with_main

_SOFTMAX = {"softmax", "Softmax", "log_softmax", "LogSoftmax"}


class TorchSwitches(Switchable):
    framework = "torch"

    def __init__(self, reference: Any, quantized: Any) -> None:
        self.adapter = TorchAdapter(reference, quantized)
        self.inputs: Sequence[Input] = self.adapter.inputs()
        self.notes: list[str] = []
        self.units: Sequence[Unit] = ()
        self.sites: Sequence[Site] = ()
        self._sites: Sites | None = None

    def trace(self, batch: Batch) -> None:
        if self._sites is None:
            self.adapter.trace(batch)
            self.inputs = self.adapter.inputs()
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
        softmax_behind = self._find_softmax()
        scores: dict[str, Tensor] = {}
        ends: dict[str, Tensor] = {}

        def visit(made: Call) -> Any:
            value, how = made.value, results.get(made.name)
            if how is not None and (tensor := main_tensor(value)) is not None:
                value = with_main(value, how(plain(tensor)).to(tensor.dtype))
            if made.name in softmax_behind and (tensor := main_tensor(value)) is not None:
                scores[softmax_behind[made.name]] = tensor
            if made.name in scores and (tensor := main_tensor(value)) is not None:
                ends[made.name] = tensor
            return value

        given = feeds(reference, batch)
        for site, (name, how) in rounding.inputs.items():
            if site in chosen:
                given[name] = how(given[name])
        with undisturbed(*self.adapter.models), torch.no_grad(), _swapped(self._replaced(chosen)):
            runner = self.adapter.runners[0]
            value = said("the reference", reference, batch, lambda: runner.run(given, visit))
        found = outputs_of(value)
        own = list(scores.values())
        if len(own) != len(found):  # not every result ends with a softmax
            own = [next((scores[n] for n, end in ends.items() if _is_form_of(end, t)), t) for t in found]
        return Outputs([to_numpy(tensor) for tensor in own], [to_numpy(tensor) for tensor in found])

    def gradients(self, batch: Batch) -> Mapping[str, npt.NDArray[np.float64]]:
        self.trace(batch)
        return gradient_scores(self.adapter, batch)

    def run_real(self, batch: Batch) -> list[Array]:
        model = self.adapter.models[1]
        with undisturbed(model), torch.no_grad():
            value = said("the quantized model", model, batch, lambda: call(model, feeds(model, batch)))
            return [to_numpy(tensor) for tensor in outputs_of(value)]

    def _find_softmax(self) -> Mapping[str, str]:
        """The call in front of each softmax that the model ends with -> that softmax."""
        steps, found = self.adapter.traces[0].steps, {}

        def maker(index: int) -> tuple[str, int] | None:
            step = steps[index]
            return (step.kind, step.sources[0]) if len(step.sources) == 1 else None

        for index in self.adapter.traces[0].outputs:
            scores = before_softmax(index, maker, _SOFTMAX)  # a trace looks through what only gives values on
            if scores != index:
                found[steps[scores].name] = steps[index].name
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


def _is_form_of(value: Tensor, other: Tensor) -> bool:
    """Whether they are the same but for shape and type."""
    is_as_large = bool(value.numel() == other.numel())
    return is_as_large and bool(torch.equal(value.reshape(-1), other.reshape(-1).to(value.dtype)))


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


def _reading(module: nn.Module, how: Rounder) -> Callable[..., Any]:
    own = type(module).forward

    def forward(value: Any, *args: Any, **kwargs: Any) -> Any:
        return own(module, how(value) if isinstance(value, Tensor) else value, *args, **kwargs)

    return forward


@contextmanager
def _swapped(replacements: Sequence[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
    """Entries of dictionaries replaced for a while: parameters of modules, or their forward functions."""
    missing = object()
    before = [(place, key, place.get(key, missing)) for place, key, _ in replacements]
    try:
        for place, key, value in replacements:
            place[key] = value
        yield
    finally:
        for place, key, value in reversed(before):
            if value is missing:
                place.pop(key, None)
            else:
                place[key] = value
