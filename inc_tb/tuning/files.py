"""Candidate models: files and folders, or objects that are stored as one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from inc_tb.errors import UsageError, writing
from inc_tb.frameworks.models import save_model
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.frameworks.registry import framework_of


def stored(model: Any, target: Path) -> Path:
    """All of the file, or of the folder, is there, or what was there before."""
    is_folder = is_file(model) and model.is_dir()
    if target.is_dir() and not is_folder:
        raise UsageError(f"{target}: is a folder; expected a file to write to. Choose another place.")
    beside = target.with_name(f".{target.name}.part")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove(beside)
        try:
            save_model(model, beside)
            if is_folder:
                remove(target)
            return beside.replace(target)
        finally:
            remove(beside)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_file(model: Any) -> bool:
    return isinstance(model, Path)


def suffix_of(model: Any) -> str:
    return model.suffix if is_file(model) else framework_of(model).saved_suffix


def suffix_by(quantizer: Quantizer, prepared: Any) -> str:
    """Of the models that a quantizer makes."""
    found: str = getattr(quantizer, "suffix", suffix_of(prepared))
    return found


def name_of(model: Any) -> str:
    return str(model.name) if is_file(model) else type(model).__name__
