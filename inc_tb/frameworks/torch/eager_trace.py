"""Who reads whose results in a model without a graph, by the identity of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from inc_tb.frameworks.torch.grids import fake_quantization, is_fake_quantizer, quantization_of, rounding_by
from inc_tb.frameworks.torch.kinds import WEIGHTED, has_relu
from inc_tb.frameworks.torch.steps import Call, Step, Trace, describe_module
from inc_tb.frameworks.torch.values import is_real, main_tensor, tensors_in


class EagerTracer:
    """Finds out who reads whose results, by the identity of tensors."""

    def __init__(self, inputs: Mapping[str, Tensor]) -> None:
        self.trace = Trace()
        self._made_by: Any = WeakTensorKeyDictionary()
        self._versions: dict[int, int] = {}
        for name, tensor in inputs.items():
            self._made_by[tensor] = frozenset([name])

    def visit(self, made: Call) -> Any:
        origins = self._origins(made.arguments)
        result = main_tensor(made.value)
        is_live = any(isinstance(o, int) for o in origins) or any(
            is_real(t) and self._made_by.get(t) for t in tensors_in(made.arguments)
        )
        self._note_mutations(made.arguments)
        if result is None or not is_real(result) or not (is_live or made.module is not None):
            self.passed(None, made.arguments, made.value)
            return made.value
        step = Step(
            len(self.trace.steps), made.name, made.kind, made.path, made.module, made.module is None,
            sorted(o for o in origins if isinstance(o, int)), sorted(o for o in origins if isinstance(o, str)),
            tuple(result.shape), made.with_relu or (made.module is not None and has_relu(made.module)),
        )  # fmt: skip
        step.quantization = quantization_of(result)
        if made.module is not None:
            describe_module(step, made.module)
        elif step.kind in WEIGHTED and len(made.arguments) > WEIGHTED[step.kind]:
            weight = made.arguments[WEIGHTED[step.kind]]
            if isinstance(weight, Tensor) and not self._made_by.get(weight):
                step.weight, step.weight_quantization = weight, quantization_of(weight)
        self.trace.steps.append(step)
        for tensor in tensors_in(made.value):
            self._set(tensor, frozenset([step.index]))
        self._versions[step.index] = _version_of(result)
        return made.value

    def passed(self, module: nn.Module | None, arguments: Sequence[Any], value: Any) -> None:
        self._note_mutations(arguments)
        origins = frozenset(self._origins(arguments))
        for tensor in tensors_in(value):
            self._set(tensor, origins)
        result = main_tensor(value)
        if result is None:
            return
        fake = module if is_fake_quantizer(module) else getattr(module, "activation_post_process", None)
        quantization = fake_quantization(fake) if is_fake_quantizer(fake) else quantization_of(result)
        if quantization is not None:
            for origin in origins:
                if isinstance(origin, str):
                    self.trace.rounding.setdefault(origin, rounding_by(fake, quantization))
                elif self.trace.steps[origin].quantization is None and _is_whole(self.trace.steps[origin], result):
                    self.trace.steps[origin].quantization = quantization
                    self.trace.steps[origin].rounding = rounding_by(fake, quantization)

    def finish(self, value: Any) -> None:
        self.trace.outputs = sorted(o for o in self._origins([value]) if isinstance(o, int))

    def _origins(self, arguments: Any) -> set[int | str]:
        return {origin for tensor in tensors_in(list(arguments)) for origin in self._made_by.get(tensor, ())}

    def _set(self, tensor: Tensor, origins: frozenset[int | str]) -> None:
        self._made_by[tensor] = origins

    def _note_mutations(self, arguments: Sequence[Any]) -> None:
        for tensor in tensors_in(list(arguments)):
            for origin in self._made_by.get(tensor, ()):
                if isinstance(origin, int) and _version_of(tensor) != self._versions[origin]:
                    self.trace.steps[origin].is_mutated = True


def _is_whole(step: Step, result: Tensor) -> bool:
    """Whether nothing of a step's result was cut off on the way."""
    return bool(prod(step.shape) == result.numel())


def _version_of(tensor: Tensor) -> int:
    """Counts changes in place."""
    return -1 if tensor.is_inference() else int(tensor._version)
