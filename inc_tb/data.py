"""Batches from what people have: .npz, .npy, folders of them, ONNX test data, or a function.

Arrays are read from disk batch by batch, also out of compressed .npz files, so memory does not
grow with the number of samples.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy

from inc_tb.capture import Array, Input
from inc_tb.errors import DataError, MismatchError

EXPECTED = (
    "a .npz with arrays named as the model's inputs, a .npy, a folder of those, a folder of ONNX test_data_set_* "
    "folders, or file.py:function"
)


@dataclass
class Data:
    """Batches that can be gone through more than once, and how many samples they hold where that is known."""

    make: Callable[[], Iterable[Any]]
    samples: int | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())

    def first(self, samples: int | None) -> Data:
        """Only so many samples; None for all."""
        if samples is None:
            return self
        known = samples if self.samples is None else min(samples, self.samples)
        return Data(lambda: _first(self, samples), known)


def open_data(source: str | PathLike[str], inputs: Sequence[Input], batch_size: int = 32) -> Data:
    """The batches that `source` describes, for a model with these inputs."""
    path = Path(source)
    if path.suffix == ".npz" and path.is_file():
        return _arrays([path], inputs, batch_size)
    if path.suffix == ".npy" and path.is_file():
        return _arrays([path], inputs, batch_size)
    if path.is_dir():
        return _folder(path, inputs, batch_size)
    file, colon, function = str(source).rpartition(":")
    if colon and file.endswith(".py"):
        return _function(Path(file), function)
    problem = "cannot be read as data" if path.exists() else "no such file"
    raise DataError(f"{source}: {problem}; expected {EXPECTED}.")


def _first(batches: Iterable[Any], samples: int) -> Iterator[Any]:
    for batch in batches:
        is_mapping = isinstance(batch, Mapping)
        arrays = batch.values() if is_mapping else batch if isinstance(batch, tuple | list) else [batch]
        size = min(len(array) for array in arrays)
        if size >= samples:
            yield {name: a[:samples] for name, a in batch.items()} if is_mapping else [a[:samples] for a in arrays]
            return
        yield batch
        samples -= size


def _folder(path: Path, inputs: Sequence[Input], batch_size: int) -> Data:
    test_data = sorted(path.glob("test_data_set_*"))
    if test_data:
        from inc_tb.adapters.onnx.testdata import read_test_data

        return Data(lambda: (read_test_data(folder, inputs) for folder in test_data))
    files = sorted(f for f in path.iterdir() if f.suffix in (".npz", ".npy"))
    if not files:
        raise DataError(f"{path}: a folder without .npz or .npy files; expected {EXPECTED}.")
    return _arrays(files, inputs, batch_size)


def _arrays(files: Sequence[Path], inputs: Sequence[Input], batch_size: int) -> Data:
    by_input = {f.stem: f for f in files if f.suffix == ".npy"}
    one_file_an_input = len(files) == len(inputs) and all(i.name in by_input for i in inputs)
    groups = [list(files)] if one_file_an_input else [[f] for f in files]
    samples = 0
    for group in groups:
        with ExitStack() as stack:
            samples += min(r.rows for r in _open(stack, group, inputs).values())
    return Data(lambda: _read(groups, inputs, batch_size), samples)


def _read(groups: Sequence[Sequence[Path]], inputs: Sequence[Input], batch_size: int) -> Iterator[Mapping[str, Array]]:
    fixed = next((i.shape[0] for i in inputs if i.shape and i.shape[0] is not None), None)
    for group in groups:
        with ExitStack() as stack:
            readers = _open(stack, group, inputs)
            left = min(r.rows for r in readers.values())
            while left >= (fixed or 1):
                size = fixed or min(batch_size, left)
                yield {name: reader.read(size) for name, reader in readers.items()}
                left -= size


def _open(stack: ExitStack, files: Sequence[Path], inputs: Sequence[Input]) -> dict[str, _Rows]:
    opened: dict[str, _Rows] = {}
    for path in files:
        try:
            if path.suffix == ".npy":
                opened[path.stem] = _Rows(stack.enter_context(path.open("rb")), path)
            else:
                archive = stack.enter_context(zipfile.ZipFile(path))
                for name in archive.namelist():
                    opened[name.removesuffix(".npy")] = _Rows(stack.enter_context(archive.open(name)), path)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: not a readable numpy file ({error}); expected {EXPECTED}.") from error
    names = [i.name for i in inputs]
    if len(files) == 1 and files[0].suffix == ".npy" and len(inputs) == 1:
        return {names[0]: opened[files[0].stem]}
    missing = [name for name in names if name not in opened]
    if missing:
        raise MismatchError(
            f"{', '.join(map(str, files))}: has the arrays {sorted(opened)}, the model has the inputs {names}. "
            "Name the arrays as the model's inputs."
        )
    return {name: opened[name] for name in names}


class _Rows:
    """Reads a .npy stream some rows at a time."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        version = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape, fortran, self.dtype = read_header(stream)
        if self.dtype.hasobject:
            raise ValueError("it holds Python objects, which are never unpickled")
        if fortran and len(self.shape) > 1:
            raise ValueError("it is in Fortran order; save it with numpy.ascontiguousarray")
        if not self.shape:
            raise ValueError("it holds a single number; the first axis must count the samples")
        self.stream = stream
        self.path = path
        self.rows: int = self.shape[0]

    def read(self, rows: int) -> Array:
        shape = (rows, *self.shape[1:])
        size = int(np.prod(shape)) * self.dtype.itemsize
        data = self.stream.read(size)
        if len(data) != size:
            raise DataError(f"{self.path}: ends too early; the file is cut off. Save it again.")
        return np.frombuffer(data, self.dtype).reshape(shape)


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """The function `name` of a Python file."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected file.py:function.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path}: not a Python file; expected file.py:function.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code may raise anything
        raise DataError(f"{path}: failed while it was loaded: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise DataError(f"{path}: has no function {name!r}; expected file.py:function.")
    return cast("Callable[..., Any]", function)


def _function(path: Path, name: str) -> Data:
    function = load_function(path, name)

    def make() -> Iterator[Any]:
        try:
            yield from function()
        except Exception as error:  # the user's own code may raise anything
            raise DataError(f"{path}:{name} failed: {type(error).__name__}: {error}") from error

    return Data(make)
