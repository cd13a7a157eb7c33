"""The frameworks that there are, and whose a model is."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from os import PathLike
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from inc_tb.errors import ModelError
from inc_tb.frameworks.framework import Framework, Tool

ENTRY_POINTS = "inc_tb.frameworks"


@cache
def frameworks() -> tuple[Framework, ...]:
    """Those of other packages first, so that they can claim what they know better."""
    others: list[Framework] = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            others.append(_as_framework(entry.load()))
        except Exception as error:  # noqa: BLE001  the code of others may raise anything, and ours goes on without it
            warnings.warn(f"the framework {entry.value} cannot be loaded: {error}", stacklevel=2)
    package = import_module("inc_tb.frameworks")
    found = [import_module(f"{package.__name__}.{m.name}") for m in iter_modules(package.__path__) if m.ispkg]
    return *others, *(module.FRAMEWORK for module in found)


def _as_framework(found: Any) -> Framework:
    if not isinstance(found, Framework):
        raise TypeError(f"{describe(found)} is no inc_tb.Framework")
    return found


def named(name: str) -> Framework | None:
    """By what a log says; one that is not installed here is nobody's."""
    return next((framework for framework in frameworks() if framework.name == name), None)


def find_tool(name: str) -> tuple[Framework, Tool] | None:
    """By the name of its class."""
    return next(((f, tool) for f in frameworks() for tool in f.tools if tool.name == name), None)


def framework_of(model: Any) -> Framework:
    """Whose model this is."""
    found = _recognized(model)
    if found is not None:
        return found
    if isinstance(model, str | PathLike) and not Path(model).exists():
        suffixes = ", ".join(suffix for framework in frameworks() for suffix in framework.suffixes)
        raise ModelError(f"{model}: no such file; expected a model ({suffixes}). Check the path.")
    *others, last = (framework.title for framework in frameworks())
    raise ModelError(f"cannot read {describe(model)}; expected a model of {', '.join(others)} or {last}. {_expected()}")


def framework_of_both(reference: Any, quantized: Any, verb: str) -> Framework:
    """The one framework of a pair, of which the reference may be missing where it can be made of the other."""
    if quantized is None:
        raise ModelError(
            f"the quantized model is None; expected a model beside {describe(reference)}. A quantizer that writes a "
            "file returns None: give the path of that file."
        )
    given = [model for model in (reference, quantized) if model is not None]
    found = {framework_of(model) for model in given}
    if len(found) == 1:
        (framework,) = found
        if reference is None and not framework.reference_is_optional:
            raise ModelError(f"{describe(quantized)}: needs a reference beside it; expected the fp32 model as well.")
        return framework
    told = " and ".join(describe(model) for model in (reference, quantized))
    raise ModelError(f"cannot {verb} {told}; expected two models of one framework. {_expected()}")


def _recognized(model: Any) -> Framework | None:
    in_turn = sorted(frameworks(), key=lambda framework: framework.takes_any_folder)
    return next((framework for framework in in_turn if framework.recognizes(model)), None)


def _expected() -> str:
    return " ".join(f"{framework.title} models are {framework.models}." for framework in frameworks())


def describe(model: Any) -> str:
    if model is None:
        return "None"
    if isinstance(model, bytes | bytearray):
        return f"a model of {len(model) / 1000:.0f} kB in memory"
    return str(model) if isinstance(model, str | PathLike) else f"a {type(model).__module__}.{type(model).__qualname__}"
