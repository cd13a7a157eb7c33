"""Models without a graph, run as they are: hooks and a function mode tell what they call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from inc_tb.frameworks.torch.arguments import call
from inc_tb.frameworks.torch.eager_trace import EagerTracer
from inc_tb.frameworks.torch.kinds import function_kind, is_leaf, is_passing, is_passing_module, module_kind
from inc_tb.frameworks.torch.steps import Call, Names, Trace, Visit
from inc_tb.frameworks.torch.values import main_tensor

Passed = Callable[[nn.Module | None, Sequence[Any], Any], None]
"""Told about calls that give on what they get."""


class Clock(Protocol):
    """Told when a call begins, and then what it was."""

    def begin(self) -> None: ...

    def visit(self, call: Call) -> Any: ...

    def passed(self, module: nn.Module | None, arguments: Sequence[Any], value: Any) -> None: ...


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
        found = EagerTracer(inputs)
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
        return self._visit(Call(name, kind.name, None, path, arguments, value, kind.with_relu))
