"""Models as people name them, here and in workers."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from inc_tb.data import load_function, split_function
from inc_tb.errors import IncTbError, ModelError
from inc_tb.frameworks.models import loaded


def open_model(given: Any) -> Any:
    """A file or folder, or what a function of a Python file returns, as PyTorch models are code; an object as it is."""
    if not isinstance(given, str | PathLike):
        return given
    if ".py:" not in str(given):
        if Path(given).suffix == ".py" and Path(given).is_file():
            raise ModelError(f"{given} is code; expected the function in it that returns the model: {given}:function.")
        return loaded(Path(given))
    path, name = split_function(given)
    try:
        return load_function(path, name)()
    except IncTbError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise ModelError(f"{given} failed: {type(error).__name__}: {error}. It must return a model.") from error


def from_anywhere(given: Any) -> Any:
    """What names a place as a worker with another current folder finds it; anything else as it is."""
    if not isinstance(given, str | PathLike):
        return given
    return str(Path(given).absolute())
