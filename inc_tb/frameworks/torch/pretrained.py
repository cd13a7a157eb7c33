"""Models of transformers: made from their config, and stored by transformers itself where it knows how."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from inc_tb.errors import ModelError, first_line
from inc_tb.frameworks.carried import Manifest
from inc_tb.frameworks.torch.plain import are_equal
from inc_tb.frameworks.torch.torchao import config_of

_ATTENTION = ("eager", "sdpa")
"""Its own; any other name may be that of code to be fetched."""
_CONFIG = "config.json"
_ADAPTER = "adapter_config.json"


class Origin(msgspec.Struct):
    """Of which class a model is, and how it computes attention, which the config does not say."""

    name: str
    attention: str | None = None


def origin_of(model: nn.Module) -> Origin | None:
    """None for a model that is none of transformers' own."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return None
    name = type(model).__name__
    if getattr(transformers, name, None) is not type(model):
        return None  # made of one of its classes, by code that is not here
    attention = getattr(model.config, "_attn_implementation", None)
    return Origin(name, attention if attention in _ATTENTION else None)


def store_beside(model: Any, tokenizer: Any, folder: Path) -> None:
    """Everything but the weights."""
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(str(folder))
    if model.can_generate() and getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(str(folder))
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))


def blank(folder: Path, origin: Origin) -> nn.Module:
    """The model with any weights."""
    made, config = _class_and_config(folder, origin)
    with _one_line(folder):
        model: nn.Module = made(config)
    return model.eval()


def store(model: nn.Module, manifest: Manifest, folder: Path) -> bool:
    """By transformers itself, where its `from_pretrained` gives the very same model."""
    origin = origin_of(model)
    if config_of(manifest.settings) is None or origin is None:
        return False
    beside = folder / "by_transformers"
    with contextlib.suppress(Exception):  # it raises many unrelated classes for what it does not know, as odd ties
        _store(model, manifest, beside)
        if are_equal(model, load(beside, origin)):
            for path in beside.iterdir():
                path.replace(folder / path.name)
            beside.rmdir()
            return True
    shutil.rmtree(beside, ignore_errors=True)
    return False


def _store(model: Any, manifest: Manifest, folder: Path) -> None:
    from transformers import TorchAoConfig
    from transformers.quantizers.auto import AutoHfQuantizer

    quantization = TorchAoConfig(config_of(manifest.settings), modules_to_not_convert=list(manifest.keep))
    before, config = getattr(model, "hf_quantizer", None), model.config
    model.config = copy.deepcopy(config)
    model.config.quantization_config = quantization
    model.hf_quantizer = AutoHfQuantizer.from_config(quantization, pre_quantized=True)
    if not _are_tied(model):
        model.config.tie_word_embeddings = False
    try:
        with without_bars():
            model.save_pretrained(str(folder))
    finally:
        model.config, model.hf_quantizer = config, before


def load(folder: Path, origin: Origin) -> nn.Module:
    made, config = _class_and_config(folder, origin)
    told = getattr(config, "quantization_config", None)
    method = told.get("quant_method") if isinstance(told, dict) else None
    if method != "torchao" or (folder / _ADAPTER).exists():
        raise ModelError(f"{folder}: its {_CONFIG} does not say how torchao has quantized it. Save the model again.")
    with _one_line(folder), without_bars():
        model: nn.Module = made.from_pretrained(str(folder), config=config, local_files_only=True, use_safetensors=True)
    return model.eval()


def _class_and_config(folder: Path, origin: Origin) -> tuple[Any, Any]:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{folder}: is a model of transformers, which is not installed: pip install transformers."
        ) from (error)
    made: Any = getattr(transformers, origin.name, None)
    is_model = isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)
    if not is_model or made.config_class is None:
        raise ModelError(f"{folder}: {origin.name} is no model of transformers {transformers.__version__}.")
    if origin.attention not in (None, *_ATTENTION):
        raise ModelError(
            f"{folder}: asks for the attention {origin.attention}; expected one of {', '.join(_ATTENTION)}."
        )
    with _one_line(folder):
        told = json.loads((folder / _CONFIG).read_bytes())
        _check_implementations(folder, told)
        config = made.config_class.from_dict(told)
        config._attn_implementation = origin.attention
    return made, config


def refuse_code(folder: Path) -> None:
    """A kernel from the hub is code, too, which the config of a model may ask for."""
    with _one_line(folder):
        _check_implementations(folder, json.loads((folder / _CONFIG).read_bytes()))


def _check_implementations(folder: Path, told: Any) -> None:
    for key, value in told.items() if isinstance(told, dict) else enumerate(told) if isinstance(told, list) else ():
        if str(key).endswith("_implementation") and isinstance(value, str) and not value.isidentifier():
            raise ModelError(f"{folder}: its {_CONFIG} asks for {key} {value!r}, which is code of others. Remove it.")
        _check_implementations(folder, value)


def _are_tied(model: Any) -> bool:
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    return all(end is not None for end in ends) and ends[0].weight is ends[1].weight


@contextlib.contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # transformers raises many unrelated classes
        raise ModelError(
            f"{folder}: transformers cannot make the model of it ({first_line(error)}). Save the model again."
        ) from (error)


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Without bars of progress."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
