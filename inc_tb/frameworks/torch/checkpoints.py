"""Models of transformers as people have them on disk: a folder with a config, or a GGUF file.

No code that a folder brings is run, and nothing is fetched.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from inc_tb.errors import ModelError, first_line
from inc_tb.frameworks.torch.pretrained import refuse_code, without_bars


def load_stored(path: Path) -> nn.Module:
    """Real numbers as float32, which is what CPUs compute with; quantized ones as their tool has them."""
    transformers = _transformers(path)
    folder, where = _place(path)
    with _one_line(path), without_bars(), contextlib.redirect_stderr(io.StringIO()):  # bars of its own for GGUF
        if path.suffix.lower() != ".gguf":
            refuse_code(folder)
        config = transformers.AutoConfig.from_pretrained(str(folder), **where)
        made = _class_of(transformers, config)
        safe = {} if "gguf_file" in where else {"use_safetensors": True}
        model: nn.Module = made.from_pretrained(str(folder), dtype=torch.float32, **safe, **where)
    return model.eval()


def open_tokenizer(path: Path) -> Any:
    """That of a folder or a GGUF file."""
    transformers = _transformers(path)
    folder, where = _place(path)
    with _one_line(path, "its tokenizer"), without_bars():
        return transformers.AutoTokenizer.from_pretrained(str(folder), **where)


def _place(path: Path) -> tuple[Path, dict[str, Any]]:
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    if path.suffix.lower() == ".gguf":
        return path.parent, {**where, "gguf_file": path.name}
    return path, where


def _class_of(transformers: Any, config: Any) -> Any:
    """The class that its config names, which has the head that it was stored with; else one that writes text."""
    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return transformers.AutoModelForCausalLM


def _transformers(path: Path) -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{path}: is a model of transformers; reading it needs {error.name}, which is not installed: "
            "pip install 'inc-tb[llm]'."
        ) from error
    return transformers


@contextlib.contextmanager
def _one_line(path: Path, what: str = "the model") -> Iterator[None]:
    try:
        yield
    except (ModelError, MemoryError):
        raise
    except Exception as error:  # transformers raises many unrelated classes
        raise ModelError(
            f"{path}: transformers cannot read {what} ({first_line(error)}). Expected a folder that save_pretrained "
            "has written with safetensors, or a GGUF file, which needs the package gguf."
        ) from error
