"""The quantizer of a tuning: the tool of the model's framework, or one of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from inc_tb.data import load_function, split_function
from inc_tb.errors import IncTbError, UsageError
from inc_tb.frameworks.models import default_quantizer
from inc_tb.frameworks.protocols import Quantizer

_NEEDED = ("settings", "prepare", "quantize", "recipe", "variants", "cures")


def find_quantizer(
    given: str | PathLike[str] | Quantizer | None, model: Any, settings: Mapping[str, Any] | None = None
) -> Quantizer:
    """As it is, or what file.py:function returns; without any, that of the model's framework for these `settings`."""
    if given is None:
        return default_quantizer(model, settings)
    found = _made_by(given) if isinstance(given, str | PathLike) else given
    if isinstance(found, type):
        raise UsageError(
            f"the class {found.__name__} was given as a quantizer; expected an object: {found.__name__}()."
        )
    missing = [name for name in _NEEDED if not hasattr(found, name)]
    if missing:
        raise UsageError(
            f"the quantizer {type(found).__name__} has no {', '.join(missing)}; expected an object with what "
            "inc_tb.Quantizer has. Derive its class from that one."
        )
    return found


def _made_by(source: str | PathLike[str]) -> Quantizer:
    """By a function of the user, or a class of theirs."""
    path, name = split_function(source)
    try:
        made: Quantizer = load_function(path, name)()
    except IncTbError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(f"{source} failed: {type(error).__name__}: {error}. It must return a quantizer.") from error
    return made
