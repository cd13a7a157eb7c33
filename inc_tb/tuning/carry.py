"""A tuned model is stored, and loaded by another process: weights and data, nothing that is executed."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from inc_tb.data import load_function, split_function
from inc_tb.errors import IncTbError, ModelError, UsageError, writing
from inc_tb.frameworks.carried import Carried, Found, Manifest
from inc_tb.frameworks.registry import framework_of, named
from inc_tb.locks import TemporaryFolder
from inc_tb.tuning.files import remove
from inc_tb.tuning.loop import Tuned

FILE = "recipe.json"
VERSION = 1
_TEXT = {".json", ".md", ".txt", ".jinja"}
"""Files beside the model that people may edit."""
_CHUNK = 1 << 20


def save(tuned: Tuned, folder: str | PathLike[str], *, tokenizer: Any = None) -> Path:
    """Store the best model of a tuning, so that `load_model` gives it in another process, with equal results.

    The folder gets the weights, `recipe.json` (settings, ops in fp32, accuracy, versions), and of a model of
    transformers its config and generation config; `tokenizer` is one that is stored beside it, or any processor.
    Nothing in it is code. A folder that holds an earlier one is replaced, any other that is not empty is refused.
    """
    if not isinstance(tuned, Tuned):
        raise UsageError(f"a {type(tuned).__qualname__} was given to be saved; expected what inc_tb.tune returned.")
    if tuned.quantized is None:
        raise UsageError(f"{tuned.best.name} has no model to be saved; its notes say why. Tune again.")
    if tokenizer is not None and not hasattr(tokenizer, "save_pretrained"):
        raise UsageError(f"a {type(tokenizer).__qualname__} was given as the tokenizer; expected one of transformers.")
    target = Path(folder)
    check_target(target)
    framework = framework_of(tuned.quantized)
    manifest = Manifest(
        VERSION, framework.name, tuned.tool, dict(tuned.best.config), list(tuned.best.fallback), tuned.examples,
        tuned.best.name, tuned.best.accuracy, tuned.baseline, tuned.target, framework.versions(),
    )  # fmt: skip
    with writing(target), TemporaryFolder("saving", target.parent) as place:
        beside = Path(place, "made")
        beside.mkdir()
        own = framework.store_tuned(Carried(tuned.quantized, tuned.reference, manifest, tokenizer), beside)
        manifest.own = dict(own)
        manifest.files = {name: _digest(beside / name) for name in _model_files(beside)}
        (beside / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        remove(target)
        beside.rename(target)
    return target


def load_model(folder: str | PathLike[str], model: Any = None) -> Any:
    """What `save` has stored: of PyTorch the module, of others the path of the model, as their runtimes take it.

    PyTorch models are code: one of transformers is made from its config, for any other `model` is the fp32 model, a
    function that makes it, or "file.py:function". Its weights do not matter; those of the folder are taken.
    """
    place = Path(folder)
    manifest = _read(place)
    framework = named(manifest.framework)
    if framework is None:
        raise ModelError(f"{place}: is of {manifest.framework}, which is not known here. Install what brings it.")
    _check_files(place, manifest)
    now = framework.versions()
    differs = [f"{p} {v} (here {now.get(p, 'none')})" for p, v in manifest.packages.items() if now.get(p) != v]
    if differs:
        warnings.warn(f"{place} was saved with {', '.join(differs)}; results may differ.", stacklevel=2)
    if isinstance(model, str) and ".py:" in model:
        model = load_function(*split_function(model))
    try:
        return framework.open_tuned(Found(place, manifest, model))
    except IncTbError:
        raise
    except msgspec.ValidationError as error:
        raise _damaged(place, error) from error


def check_target(target: Path) -> None:
    """Before work that would be for nothing if nothing can be saved there."""
    if target.is_file() or (target.is_dir() and any(target.iterdir()) and not (target / FILE).is_file()):
        what = "a file" if target.is_file() else "a folder with something else in it"
        raise UsageError(f"{target}: is {what}; expected a new folder, or one that inc_tb.save has written.")


def _read(folder: Path) -> Manifest:
    try:
        data = (folder / FILE).read_bytes()
    except OSError as error:
        raise ModelError(f"{folder}: has no {FILE}; expected a folder that inc_tb.save has written.") from error
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(folder, error) from error
    if found.version != VERSION:
        raise ModelError(
            f"{folder}: its {FILE} has version {found.version}; expected {VERSION}. Load it with a newer inc-tb."
        )
    return found


def _damaged(folder: Path, error: Exception) -> ModelError:
    return ModelError(f"{folder}: its {FILE} is damaged ({error}). Save the model again.")


def _check_files(folder: Path, manifest: Manifest) -> None:
    for name, digest in manifest.files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts or not path.is_file():
            raise ModelError(f"{folder}: {name} is missing. Save the model again, or copy all of the folder.")
        if _digest(path) != digest:
            raise ModelError(f"{folder}: {name} is damaged or was replaced. Save the model again.")


def _model_files(folder: Path) -> Iterator[str]:
    """Without what people may edit."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not (path.parent == folder and path.suffix in _TEXT):
            yield path.relative_to(folder).as_posix()


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
