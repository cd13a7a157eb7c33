"""Batches from what people have: .npz, .npy, folders of them, ONNX test data, or a function.

Arrays are read from disk batch by batch, also out of compressed .npz files, so memory does not
grow with the number of samples.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy

from inc_tb.errors import DataError, MismatchError, UsageError, reading
from inc_tb.frameworks.arrays import as_array
from inc_tb.frameworks.ops import Array, Batch, Input
from inc_tb.frameworks.protocols import Adapter
from inc_tb.frameworks.registry import frameworks
from inc_tb.records import listed, plural

_MOST_BYTES = 64 << 20
"""Of samples that are read at once, where nobody says how many."""
LARGEST_SAMPLE = 1 << 30
"""Bytes. A compressed file of a few megabytes may claim samples of any size."""
_MOST_EMPTY = 1 << 20
"""Samples of an input that has no numbers, such as a cache that is empty yet: nothing else says where a file ends."""
EXPECTED = (
    "a .npz with arrays named as the model's inputs, a .npy, a folder of those, a folder of ONNX test_data_set_* "
    "folders, or file.py:function"
)


@dataclass
class Data:
    """Batches that can be gone through more than once, and how many samples they hold where that is known."""

    make: Callable[[], Iterable[Any]]
    samples: int | None = None
    at_once: int = 1
    """Samples come in multiples of this; what is left over cannot be used."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())

    def first(self, samples: int | None) -> Data:
        """Only so many samples; None for all."""
        if samples is None:
            return self
        samples = max(self.at_once, samples - samples % self.at_once)
        known = samples if self.samples is None else min(samples, self.samples)
        return Data(lambda: _first(self, samples), known, self.at_once)


def open_for(adapter: Adapter, source: str | PathLike[str]) -> Data:
    """Batches of as many samples as the adapter is asked to run at once, or else of what is read at once."""
    asked = adapter.samples_at_once
    most = _MOST_BYTES if asked is None else None
    return open_data(source, adapter.inputs(), asked or adapter.batch_size(), most)


def open_data(
    source: str | PathLike[str], inputs: Sequence[Input], batch_size: int = 32, most_bytes: int | None = None
) -> Data:
    """The batches that `source` describes, for a model with these inputs; large samples in smaller batches."""
    path = Path(source)
    if path.suffix == ".npz" and path.is_file():
        return _arrays([path], inputs, batch_size, most_bytes)
    if path.suffix == ".npy" and path.is_file():
        return _arrays([path], inputs, batch_size, most_bytes)
    if path.is_dir():
        return _folder(path, inputs, batch_size, most_bytes)
    if ".py:" in str(source):
        return _function(*split_function(str(source)))
    problem = "cannot be read as data" if path.exists() else "no such file"
    raise DataError(f"{source}: {problem}; expected {EXPECTED}.")


def _first(batches: Iterable[Any], samples: int) -> Iterator[Any]:
    for batch in batches:
        is_mapping = isinstance(batch, Mapping)
        arrays = batch.values() if is_mapping else batch if isinstance(batch, tuple | list) else [batch]
        size = min((len(array) for array in arrays if np.ndim(array)), default=1)
        if size >= samples:
            cut_off = [a[:samples] if np.ndim(a) else a for a in arrays]
            yield dict(zip(batch, cut_off, strict=True)) if is_mapping else cut_off
            return
        yield batch
        samples -= size


def _folder(path: Path, inputs: Sequence[Input], batch_size: int, most_bytes: int | None) -> Data:
    own = next((d for framework in frameworks() if (d := framework.open_data(path, inputs)) is not None), None)
    if own is not None:
        return Data(lambda: own)
    files = sorted(f for f in path.iterdir() if f.suffix in (".npz", ".npy"))
    if not files:
        raise DataError(f"{path}: a folder without .npz or .npy files; expected {EXPECTED}.")
    return _arrays(files, inputs, batch_size, most_bytes)


def _arrays(files: Sequence[Path], inputs: Sequence[Input], batch_size: int, most_bytes: int | None) -> Data:
    by_input = {f.stem: f for f in files if f.suffix == ".npy"}
    one_file_an_input = len(files) == len(inputs) and all(i.name in by_input for i in inputs)
    groups = [list(files)] if one_file_an_input else [[f] for f in files]
    samples = 0
    for group in groups:
        with ExitStack() as stack:
            samples += min(r.rows for r in _open(stack, group, inputs).values())
    fixed = _fixed_batch(inputs) or 1
    if samples < fixed:
        raise DataError(
            f"{files[0]}: {plural(samples, 'sample')}, the model takes {fixed} at once. Give at least as many."
        )
    return Data(lambda: _read(groups, inputs, batch_size, most_bytes), samples - samples % fixed, fixed)


def _fixed_batch(inputs: Sequence[Input]) -> int | None:
    """How many samples the model takes at once, where its file fixes that."""
    return next((i.shape[0] for i in inputs if i.shape and i.shape[0] is not None), None)


def _read(
    groups: Sequence[Sequence[Path]], inputs: Sequence[Input], batch_size: int, most_bytes: int | None
) -> Iterator[Mapping[str, Array]]:
    fixed = _fixed_batch(inputs)
    for group in groups:
        with ExitStack() as stack:
            readers = _open(stack, group, inputs)
            left = min(r.rows for r in readers.values())
            most = _fitting(batch_size, sum(r.row_bytes for r in readers.values()), most_bytes)
            while left >= (fixed or 1):
                size = fixed or min(most, left)
                yield {name: reader.read(size) for name, reader in readers.items()}
                left -= size


def _fitting(batch_size: int, row_bytes: int, most_bytes: int | None) -> int:
    """Halved until it fits, so that it stays what a model takes at once as long as that can be."""
    while most_bytes is not None and batch_size % 2 == 0 and batch_size * row_bytes > most_bytes:
        batch_size //= 2
    return batch_size


def _open(stack: ExitStack, files: Sequence[Path], inputs: Sequence[Input]) -> dict[str, _Rows]:
    found: dict[str, Callable[[], _Rows]] = {}
    names = [i.name for i in inputs]
    only_input = names[0] if len(names) == len(files) == 1 else None
    with reading(DataError, listed(files), "not a readable numpy file", f"Expected {EXPECTED}."):
        for path in files:
            if path.suffix == ".npy":
                found[only_input or path.stem] = partial(_rows, stack, path, path.open, "rb", path.stat().st_size)
            else:
                archive = stack.enter_context(zipfile.ZipFile(path))
                for entry in archive.infolist():
                    opened = partial(_rows, stack, path, archive.open, entry.filename, entry.file_size)
                    found[entry.filename.removesuffix(".npy")] = opened
        if not set(names) <= set(found):
            raise MismatchError(
                f"{', '.join(map(str, files))}: has the arrays {sorted(found)}, the model has the inputs {names}. "
                "Name the arrays as the model's inputs."
            )
        return {name: found[name]() for name in names}


def _rows(stack: ExitStack, path: Path, opener: Callable[[str], Any], name: str, size: int) -> _Rows:
    return _Rows(stack.enter_context(opener(name)), path, size)


class _Rows:
    """Reads a .npy stream some rows at a time."""

    def __init__(self, stream: IO[bytes], path: Path, size: int) -> None:
        """`size` is that of the whole stream, header and all."""
        version = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        self.shape, fortran, self.dtype = read_header(stream)
        if self.dtype.hasobject:
            raise ValueError("it holds Python objects, which are never unpickled")
        if fortran and len(self.shape) > 1:
            raise ValueError("it is in Fortran order; save it with numpy.ascontiguousarray")
        if not self.shape:
            raise ValueError("it holds a single number; the first axis must count the samples")
        if min(self.shape) < 0 or not self.dtype.itemsize:
            raise ValueError(f"its header says {self.shape} of {self.dtype}, which is no array of numbers")
        self.stream = stream
        self.path = path
        self.rows: int = self.shape[0]
        self.row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        if self.row_bytes > LARGEST_SAMPLE:
            raise ValueError(f"one sample of it takes {self.row_bytes / 1e9:.3g} GB; the first axis must count samples")
        if self.rows * self.row_bytes > size:
            raise ValueError("it ends too early; the file is cut off")
        if self.rows > _MOST_EMPTY and not self.row_bytes:
            raise ValueError(f"it has {self.rows} samples without any numbers")

    def read(self, rows: int) -> Array:
        shape = (rows, *self.shape[1:])
        size = rows * self.row_bytes
        with reading(DataError, self.path, "is damaged", "Save it again."):
            data = self.stream.read(size)
            if len(data) != size:
                raise EOFError("it ends too early; the file is cut off")
            return np.frombuffer(data, self.dtype).reshape(shape)


def take(batches: Iterable[Any], samples: int, inputs: Sequence[Input]) -> list[Batch]:
    """The first samples as mappings; where the model takes a fixed number at once, whole batches."""
    found: list[Batch] = []
    fixed = _fixed_batch(inputs)
    for given in [batches] if is_one_batch(batches) else batches:
        batch = as_batch(given, inputs)
        size = next((len(array) for array in batch.values() if array.ndim), 1)
        cut = samples if size > samples and fixed is None else size
        found.append({name: array[:cut] if array.ndim else array for name, array in batch.items()})
        samples -= size
        if samples <= 0:
            break
    if not found:
        raise DataError("the data has no samples; expected at least one batch. Check the data source.")
    return found


def cut(whole: Batch, size: int, inputs: Sequence[Input]) -> list[Batch]:
    """One mapping of many samples as batches of this size, or of the one that the model takes."""
    size = _fixed_batch(inputs) or size
    count = max((len(array) for array in whole.values() if array.ndim), default=1)
    starts = range(0, count, size)
    return [{n: a[start : start + size] if a.ndim else a for n, a in whole.items()} for start in starts]


def digest(batches: Iterable[Batch]) -> str:
    """The same for the same data only."""
    found = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            found.update(name.encode())
            found.update(np.ascontiguousarray(batch[name]).tobytes())
    return found.hexdigest()[:16]


def check_fit(batch: Batch, inputs: Sequence[Input]) -> None:
    """Raise MismatchError unless the arrays have the names and shapes that the model takes."""
    for expected in inputs:
        if expected.name not in batch:
            raise MismatchError(
                f"the data has the arrays {sorted(batch)}, the model has the inputs {[i.name for i in inputs]}. "
                "Name the arrays as the model's inputs."
            )
        shape = batch[expected.name].shape
        if not expected.is_known:
            continue
        fits = len(shape) == len(expected.shape) and all(
            wanted in (None, length) for wanted, length in zip(expected.shape, shape, strict=True)
        )
        if not fits:
            wanted = "x".join("any" if n is None else str(n) for n in expected.shape)
            raise MismatchError(
                f"the array {expected.name} has shape {'x'.join(map(str, shape))}, the model expects {wanted}. "
                "Reshape the data; the first axis counts the samples."
            )


def is_one_batch(given: Any) -> bool:
    """A mapping, an array or a tensor, and not a sequence of them."""
    return isinstance(given, Mapping) or hasattr(given, "ndim")


def as_batch(given: Any, inputs: Sequence[Input]) -> Batch:
    try:
        return _as_batch(given, inputs)
    except ValueError as error:  # rows of different lengths
        raise DataError(
            f"a batch is no array ({error}); expected arrays whose first axis counts the samples."
        ) from error


def _as_batch(given: Any, inputs: Sequence[Input]) -> Batch:
    if isinstance(given, Mapping):
        return {str(name): as_array(array) for name, array in given.items() if array is not None}
    arrays = list(given) if isinstance(given, tuple | list) else [given]
    if [i.name for i in inputs] == ["*"]:  # a model that takes any number of arrays
        return {f"*{place}": as_array(array) for place, array in enumerate(arrays)}
    if len(arrays) != len(inputs):
        raise MismatchError(
            f"a batch has {plural(len(arrays), 'array')}, the model has the inputs {[i.name for i in inputs]}. "
            "Yield a mapping from input name to array."
        )
    return {i.name: as_array(array) for i, array in zip(inputs, arrays, strict=True)}


def split_function(source: str | PathLike[str]) -> tuple[Path, str]:
    """file.py:function as the file and the function's name."""
    file, colon, function = str(source).rpartition(":")
    if not colon or not file.endswith(".py"):
        raise UsageError(f"{source} was given; expected file.py:function.")
    return Path(file), function


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """The function `name` of a Python file."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected file.py:function.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise DataError(f"{path}: not a Python file; expected file.py:function.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and the like look themselves up there
    sys.path.insert(0, str(path.absolute().parent))  # as when Python runs the file itself
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
            made = function()
            yield from [made] if is_one_batch(made) else made
        except Exception as error:  # the user's own code may raise anything
            raise DataError(f"{path}:{name} failed: {type(error).__name__}: {error}") from error

    return Data(make)
