"""What a quantized model rounds, seen in the reference: results of calls, weights, and whole modules.

Modules that take and give real numbers (dynamic, weight-only, another type) are simulated by themselves, called from
the reference. Where integers flow between modules, or a graph rounds in between, a tensor is rounded as long as an op
that asks for it is quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from inc_tb.frameworks.ops import Site, Unit
from inc_tb.frameworks.torch.followers import is_follower
from inc_tb.frameworks.torch.grids import Rounder, fake_quantized
from inc_tb.frameworks.torch.match import Match, Matching
from inc_tb.frameworks.torch.steps import Step
from inc_tb.frameworks.torch.values import to_numpy
from inc_tb.frameworks.torch.weights import weight_of
from inc_tb.frameworks.weights import unfolded


@dataclass
class Rounding:
    """How the sites are carried out in the reference."""

    results: dict[str, tuple[str, Rounder]] = field(default_factory=dict)
    """Site -> the call whose result is rounded, and how."""
    inputs: dict[str, tuple[str, Rounder]] = field(default_factory=dict)
    """Site -> the model's input that is rounded, and how."""
    weights: dict[str, tuple[nn.Module, Tensor]] = field(default_factory=dict)
    """Site -> the module of the reference whose weights are replaced."""
    modules: dict[str, tuple[nn.Module, nn.Module]] = field(default_factory=dict)
    """Site -> the module of the reference that is replaced."""
    reads: dict[str, tuple[nn.Module, Rounder]] = field(default_factory=dict)
    """Site -> the module that rounds what it reads, to a range found at run time."""


class Sites:
    def __init__(self, matching: Matching, modules: Mapping[str, nn.Module]) -> None:
        """`modules` are those of the reference that is run, by their paths."""
        self.notes: list[str] = []
        self.rounding = Rounding()
        self.all: list[Site] = []
        self._matching = matching
        self._modules = modules
        self._readers: dict[int, list[Match]] = {}
        for match in matching.matches.values():
            for source in match.step.sources:
                self._readers.setdefault(matching.root(source), []).append(match)
        self._rounds_results = self._find_whether_results_are_rounded()
        for match in matching.matches.values():
            self._add_sites(match)
        self._add_inputs()
        self.units = self._find_units()

    def _add_sites(self, match: Match) -> None:
        name, module = _unit(match.step), self._module(match.step)
        twin = match.twin.module
        if twin is not None and module is not None and self._is_exchangeable(match):
            if name not in self.rounding.modules:
                self._add(name, "weight", frozenset([name]))
                self.rounding.modules[name] = module, twin
            return
        found = self._matching.weights(match) if match.step.kind != "Embedding" or module is not None else None
        if found is not None and _has_quantized_weight(match.twin) and module is not None:
            site = f"{name}:weight"
            if site not in self.rounding.weights:
                self._add(site, "weight", frozenset([name]))
            self.rounding.weights[site] = module, _unfolded(module, found.reference, found.quantized)
        if match.twin.is_dynamic and match.twin.reading is not None and module is not None:
            if f"{name}:input" not in self.rounding.reads:
                self._add(f"{name}:input", "activation", frozenset([name]))
            self.rounding.reads[f"{name}:input"] = module, match.twin.reading
        rounded = _result_rounding(match.twin)
        units = self._starters(match) if rounded is not None else frozenset()
        if rounded is not None and units:
            site = f"{match.step.name}:output"
            self._add(site, "activation", units)
            self.rounding.results[site] = match.end.name, rounded

    def _add(self, name: str, kind: Literal["activation", "weight"], units: frozenset[str]) -> None:
        self.all.append(Site(name, kind, units, name))

    def _module(self, step: Step) -> nn.Module | None:
        """The module that a step is the call of."""
        return None if step.is_function else self._modules.get(step.path)

    def _is_exchangeable(self, match: Match) -> bool:
        """Real numbers go in and come out, and something about it is quantized or of another type."""
        mine, theirs = match.step.module, match.twin.module
        if mine is None or theirs is None or match.twin.quantization is not None or match.folded:
            return False
        if match.twin.with_relu or _is_integer(theirs):
            return False
        is_quantized = _has_quantized_weight(match.twin) or match.twin.is_dynamic
        return is_quantized or type(mine) is not type(theirs) or _dtype(mine) != _dtype(theirs)

    def _find_whether_results_are_rounded(self) -> bool:
        """Whether ops round what they write, and not only what they read: then a result that none reads is rounded."""
        for match in self._matching.matches.values():
            q = match.twin.quantization
            if q is None or q.scale is None:
                continue
            if match.twin.rounding is None or not any(
                self._starter(r) for r in self._readers.get(match.step.index, ())
            ):
                return True
        return False

    def _starters(self, match: Match) -> frozenset[str]:
        """Ops whose quantization rounds what this one writes."""
        # Where only what is read is rounded, activations are part of the op before them; pools pass roundings on.
        if _follows(match.step) and (self._rounds_results or "pool" in match.step.kind.lower()):
            passed_on = self._upstream(match)
            if passed_on:
                return frozenset(passed_on)
        readers = [self._starter(reader) for reader in self._readers.get(match.step.index, ())]
        found = {name for name in readers if name}
        if self._rounds_results and not _follows(match.step):
            found.add(self._starter(match) or _unit(match.step))
        if not found:  # passed on by ops that start nothing
            found = self._around(match, set())
        return frozenset(found)

    def _upstream(self, match: Match) -> set[str]:
        """Ops whose rounded results an op passes on."""
        found: set[str] = set()
        for source in self._sources(match):
            name = self._starter(source)
            found |= {name} if name else self._upstream(source)
        return found

    def _around(self, match: Match, seen: set[int]) -> set[str]:
        found: set[str] = set()
        seen.add(match.step.index)
        near = [*self._readers.get(match.step.index, ()), *self._sources(match)]
        for other in near:
            if other.step.index not in seen:
                name = self._starter(other)
                found |= {name} if name else self._around(other, seen)
        return found

    def _sources(self, match: Match) -> list[Match]:
        roots = (self._matching.root(source) for source in match.step.sources)
        return [self._matching.matches[root] for root in roots if root in self._matching.matches]

    def _starter(self, match: Match) -> str:
        """The op that a tool is told to quantize for this one to be; "" where it only follows others."""
        if _has_quantized_weight(match.twin) or match.twin.is_dynamic:
            return _unit(match.step)
        if _follows(match.step):
            return ""
        if match.twin.quantization is not None and match.twin.rounding is None:
            return _unit(match.step)  # an integer kernel of its own
        for source in self._sources(match):  # fused with the op before it
            if _has_quantized_weight(source.twin) and source.twin.quantization is None:
                return _unit(source.step)
        return ""

    def _add_inputs(self) -> None:
        for name, rounding in self._matching.quantized.rounding.items():
            readers = [m for m in self._matching.matches.values() if name in m.step.reads]
            units = frozenset(unit for m in readers if (unit := self._starter(m)))
            if units:
                self._add(f"{name}:input of the model", "activation", units)
                self.rounding.inputs[f"{name}:input of the model"] = name, rounding

    def _find_units(self) -> list[Unit]:
        named = {unit for site in self.all for unit in site.units}
        found: dict[str, list[str]] = {}
        for match in sorted(self._matching.matches.values(), key=lambda match: match.step.index):
            if _unit(match.step) in named:
                found.setdefault(_unit(match.step), []).extend([match.step.name, *(f.name for f in match.folded)])
        return [Unit(name, ops) for name, ops in found.items()]


def _unit(step: Step) -> str:
    """What a tool can keep in fp32: a function, or a module with all of its calls."""
    return step.name if step.is_function else step.path


def _has_quantized_weight(twin: Step) -> bool:
    found = weight_of(twin)
    return found is not None and found.quantization is not None


def _follows(step: Step) -> bool:
    return is_follower(step.kind)


def _is_integer(module: nn.Module) -> bool:
    """One of torch's modules between which integers flow."""
    home = type(module).__module__
    return home.startswith(("torch.ao.nn.quantized.modules", "torch.ao.nn.intrinsic.quantized.modules"))


def _dtype(module: nn.Module) -> torch.dtype | None:
    return next((p.dtype for p in module.parameters() if p.dtype.is_floating_point), None)


def _result_rounding(twin: Step) -> Rounder | None:
    if twin.rounding is not None:
        return twin.rounding
    q = twin.quantization
    if q is None or q.scale is None or q.zero_point is None:
        return None
    return lambda value: fake_quantized(value, q)


def _unfolded(module: nn.Module, folded: Tensor, quantized: Tensor) -> Tensor:
    """Quantized weights as the module has them: a batch norm that was folded in is still a call of its own here."""
    own: Tensor = module.weight.detach()
    if own.shape != folded.shape:
        folded, quantized = folded.t(), quantized.t()
    found = unfolded(to_numpy(own), to_numpy(folded), to_numpy(quantized))
    return torch.from_numpy(found).to(own.dtype)
