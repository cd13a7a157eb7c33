"""What a model does when it runs, call by call: its ops, and what each reads.

A call is that of a leaf module, or of a function outside of one. Models are run as they are, with hooks and a function
mode; graph modules (FX, export) as a copy of their graph that stops at every node.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from inc_tb.adapters.torch.kinds import (
    WEIGHTED,
    function_kind,
    has_relu,
    is_leaf,
    is_passing,
    is_passing_module,
    module_kind,
)
from inc_tb.adapters.torch.values import (
    dtype_name,
    fake_quantization,
    fake_quantized,
    is_fake_quantizer,
    is_real,
    main_tensor,
    quantization_of,
    tensors_in,
)
from inc_tb.errors import MismatchError
from inc_tb.records import Quantization


class Call(NamedTuple):
    """One call while a model runs."""

    name: str
    kind: str
    module: nn.Module | None
    path: str
    """The module itself, or the one that the function is called in."""
    arguments: Sequence[Any]
    value: Any


Visit = Callable[[Call], Any]
"""Gets a call with what it returned, and returns what the model goes on with."""


@dataclass
class Step:
    """A call that was seen when the model was traced."""

    index: int
    name: str
    kind: str
    path: str
    module: nn.Module | None
    sources: list[int] = field(default_factory=list)
    """Steps whose results it reads, perhaps rearranged."""
    reads: list[str] = field(default_factory=list)
    """Inputs of the model that it reads."""
    shape: tuple[int, ...] = ()
    with_relu: bool = False
    is_mutated: bool = False
    """Its result is changed in place by a later call."""
    quantization: Quantization | None = None
    """Of its result, as others read it."""
    rounding: Callable[[Tensor], Tensor] | None = None
    """What is done to its result before others read it, where that is another call."""
    is_dynamic: bool = False
    """Rounds what it reads to a range that is found at run time …"""
    read_dtype: str = "uint8"
    """… in this type."""
    reading: Callable[[Tensor], Tensor] | None = None
    """That rounding, where it is another call."""
    weight: Tensor | None = None
    """The weights that a function got."""
    weight_quantization: Quantization | None = None
    eps: float | None = None
    """Of a batch norm, where its module does not say."""
    has_looked_for_weight: bool = False
    found_weight: Any = None


@dataclass
class Trace:
    steps: list[Step] = field(default_factory=list)
    inputs: dict[str, Quantization] = field(default_factory=dict)
    """Inputs of the model that are rounded before anything else happens."""
    rounding: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    """Steps whose results the model returns."""

    def by_name(self) -> dict[str, Step]:
        return {step.name: step for step in self.steps}


class Runner(Protocol):
    model: nn.Module
    modules: dict[str, nn.Module]
    """Those that really run, by their paths."""
    leaves: set[str]
    """Paths of the modules that are ops."""

    def run(self, inputs: Mapping[str, Tensor], visit: Visit) -> Any:
        """The model's outputs; `visit` is called for every call."""
        ...

    def trace(self, inputs: Mapping[str, Tensor]) -> Trace: ...


def open_runner(model: nn.Module, leaves: set[str] | None = None) -> Runner:
    """`leaves` are the ops of another model, which are ops here, too, whatever is inside."""
    if isinstance(model, fx.GraphModule):
        from inc_tb.adapters.torch.graphs import GraphRunner

        return GraphRunner(model, leaves)
    return EagerRunner(model, leaves)


class Names:
    """The same names in every run, and in both models."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], int] = {}

    def of_module(self, path: str) -> str:
        count = self._count(path, "")
        return path if count == 1 else f"{path}/{count}"

    def of_function(self, path: str, kind: str) -> str:
        count = self._count(path, kind)
        return f"{path}/{kind}" if count == 1 else f"{path}/{kind}_{count - 1}"

    def _count(self, path: str, kind: str) -> int:
        self._seen[path, kind] = self._seen.get((path, kind), 0) + 1
        return self._seen[path, kind]


class EagerRunner:
    def __init__(self, model: nn.Module, leaves: set[str] | None = None) -> None:
        self.model = model
        self.modules = {_shown(path): module for path, module in model.named_modules(remove_duplicate=False)}
        self._paths = {m: _shown(path) for path, m in model.named_modules() if not hasattr(m, "_orig_mod")}
        ops = {path for module, path in self._paths.items() if path and (is_leaf(module) or path in (leaves or ()))}
        self.leaves = {path for path in ops if not _is_below(path, ops)}

    def run(self, inputs: Mapping[str, Tensor], visit: Visit) -> Any:
        return self._run(inputs, visit, lambda module, arguments, value: None)

    def run_timed(self, inputs: Mapping[str, Tensor], clock: Clock) -> Any:
        return self._run(inputs, clock.visit, clock.passed, clock.begin)

    def trace(self, inputs: Mapping[str, Tensor]) -> Trace:
        found = _Tracer(inputs)
        value = self._run(inputs, found.visit, found.passed)
        found.finish(value)
        return found.trace

    def _run(
        self, inputs: Mapping[str, Tensor], visit: Visit, passed: Passed, begin: Callable[[], None] | None = None
    ) -> Any:
        watch = _Watch(visit, passed, begin)
        with ExitStack() as stack:
            for module, path in self._paths.items():
                if path:
                    for handle in watch.hook(module, path, path in self.leaves):
                        stack.callback(handle.remove)
            stack.enter_context(watch)
            return call(self.model, inputs)


def _shown(path: str) -> str:
    """Without what torch.compile puts around a module."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def _is_below(path: str, ops: set[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:i]) in ops for i in range(1, len(parts)))


Passed = Callable[[nn.Module | None, Sequence[Any], Any], None]
"""Told about calls that give on what they get."""


class Clock(Protocol):
    """Told when a call begins, and then what it was."""

    def begin(self) -> None: ...

    def visit(self, call: Call) -> Any: ...

    def passed(self, module: nn.Module | None, arguments: Sequence[Any], value: Any) -> None: ...


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Follows one run of a model: which module it is in, and what it calls."""

    def __init__(self, visit: Visit, passed: Passed, begin: Callable[[], None] | None = None) -> None:
        """`begin` is called before each call that `visit` or `passed` is then told about."""
        super().__init__()
        self._begin = self._alone(begin) if begin is not None else None
        self._visit, self._passed = self._alone(visit), self._alone(passed)
        self._is_busy = False
        self._thread = threading.get_ident()
        self._stack: list[str] = [""]
        self._leaf = 0
        self._names = Names()

    def _alone(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What is done about a call is none of the model's."""

        def called(*args: Any) -> Any:
            self._is_busy = True
            try:
                return function(*args)
            finally:
                self._is_busy = False

        return called

    def hook(self, module: nn.Module, path: str, is_op: bool) -> Iterator[Any]:
        passing = is_passing_module(module)
        if isinstance(module, torch.jit.ScriptModule):
            return

        def enter(_: nn.Module, __: Any) -> None:
            if threading.get_ident() == self._thread:
                if is_op and not self._leaf and self._begin is not None:
                    self._begin()
                self._stack.append(path)
                self._leaf += is_op

        def leave(_: nn.Module, args: Any, kwargs: Any, value: Any) -> Any:
            if threading.get_ident() != self._thread:
                return None
            self._stack.pop()
            self._leaf -= is_op
            if not is_op or self._leaf:
                return None
            arguments = [*args, *kwargs.values()]
            if passing:
                self._passed(module, arguments, value)
                return None
            name = self._names.of_module(path)
            return self._visit(Call(name, module_kind(module), module, path, arguments, value))

        yield module.register_forward_pre_hook(enter)
        yield module.register_forward_hook(leave, with_kwargs=True, always_call=True)  # a model may catch its errors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_inner = bool(self._leaf) or self._is_busy or threading.get_ident() != self._thread
        if self._begin is not None and not is_inner:
            self._begin()
        value = func(*args, **(kwargs or {}))
        if is_inner:
            return value
        arguments = [*args, *(kwargs or {}).values()]
        if main_tensor(value) is None:
            self._passed(None, arguments, value)  # perhaps an assignment to a part of a tensor
            return value
        kind = function_kind(func)
        if is_passing(kind.name):
            self._passed(None, arguments, value)
            return value
        path = self._stack[-1]
        name = self._names.of_function(path, kind.name)
        label = f"{kind.name}_relu" if kind.with_relu else kind.name
        return self._visit(Call(name, label, None, path, arguments, value))


class _Tracer:
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
        kind = made.kind
        with_relu = kind.endswith("_relu") and made.module is None
        step = Step(
            len(self.trace.steps), made.name, kind.removesuffix("_relu") if with_relu else kind, made.path, made.module,
            sorted(o for o in origins if isinstance(o, int)), sorted(o for o in origins if isinstance(o, str)),
            tuple(result.shape), with_relu or (made.module is not None and has_relu(made.module)),
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
        self._versions[step.index] = version_of(result)
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
                    self.trace.inputs.setdefault(origin, quantization)
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
                if isinstance(origin, int) and version_of(tensor) != self._versions[origin]:
                    self.trace.steps[origin].is_mutated = True


def _is_whole(step: Step, result: Tensor) -> bool:
    """Whether nothing of a step's result was cut off on the way."""
    return bool(prod(step.shape) == result.numel())


def version_of(tensor: Tensor) -> int:
    """Counts changes in place."""
    return -1 if tensor.is_inference() else int(tensor._version)


def rounding_by(fake: Any, quantization: Quantization) -> Callable[[Tensor], Tensor]:
    """What a fake quantizer does, or else a quantization to this grid."""
    if is_fake_quantizer(fake):
        return lambda value: fake(value.float()).to(value.dtype)
    return lambda value: fake_quantized(value, quantization)


def describe_module(step: Step, module: nn.Module) -> None:
    """What a module says about its own quantization."""
    fake = getattr(module, "activation_post_process", None)
    if step.quantization is None and is_fake_quantizer(fake):
        step.quantization = fake_quantization(fake)
    weight = getattr(module, "weight", None)
    acts = getattr(weight, "act_quant_kwargs", None) is not None or hasattr(weight, "input_quant_func")
    dynamic_activation = getattr(weight, "activation_quantization", None) is not None
    is_dynamic = type(module).__module__.startswith("torch.ao.nn.quantized.dynamic")
    fake_input = getattr(module, "activation_fake_quantizer", None)
    step.is_dynamic = is_dynamic or acts or dynamic_activation or fake_input is not None
    if step.is_dynamic and not is_dynamic:
        dtype = getattr(getattr(fake_input, "config", None), "dtype", torch.int8)  # torchao's
        step.read_dtype = dtype_name(dtype) if isinstance(dtype, torch.dtype) else "int8"


def call(model: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    """By name where the model has names for what it takes; a single input may have any name."""
    positional, named = arranged(model, inputs)
    return model(*positional, **named)


def arranged(model: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """What is given by position, and what by name."""
    parameters = inspect.signature(model.forward).parameters.values()
    if all(name.startswith(ANY) for name in inputs):
        return list(inputs.values()), {}
    by_name = _exported_names(model)
    first = [
        p.name
        for p in parameters
        if p.name in inputs and (p.kind is p.POSITIONAL_ONLY or (by_name is not None and p.name not in by_name))
    ]
    names = input_names(model)
    if names is None or set(inputs) <= set(names):
        return [inputs[name] for name in first], {n: value for n, value in inputs.items() if n not in first}
    if len(inputs) == 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return list(inputs.values()), {}
    raise MismatchError(
        f"the data has the arrays {sorted(inputs)}, the model takes {names}. Name the arrays as the arguments of its "
        "forward."
    )


def _exported_names(model: nn.Module) -> set[str] | None:
    """An exported model takes each argument in the way in which it was exported: these by name."""
    spec = getattr(model, "_in_spec", None)
    if spec is None:
        return None
    return set((spec.child(1) if hasattr(spec, "child") else spec.children_specs[1]).context)  # from torch 2.9 on


ANY = "*"
"""How the names of inputs begin that are given by their position."""


def input_names(model: nn.Module) -> list[str] | None:
    """None where the model takes any."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]


def required_names(model: nn.Module) -> list[str]:
    """What must be given; the first of what can be, where all have defaults."""
    every = inspect.signature(model.forward).parameters.values()
    parameters = [p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p.name for p in parameters if p.default is p.empty]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in every)
    return required or [p.name for p in parameters[:1]] or ([ANY] if takes_any else ["input"])


@contextmanager
def swapped(replacements: Sequence[tuple[dict[str, Any], str, Any]]) -> Iterator[None]:
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
