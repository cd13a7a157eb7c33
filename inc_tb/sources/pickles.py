"""Pickles of other tools, read without executing anything.

Whatever class or function a pickle names, what is called in its place only keeps what it was called with. Afterwards
containers, numbers and arrays are made of that here; everything else stays an `Unknown`. A name that the files in
question have no need of makes the whole file unusable, because nobody puts it there by accident.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from inc_tb.errors import DataError

_CONTAINERS = ("collections.OrderedDict", "collections.defaultdict", "builtins.dict")
_LISTS: Mapping[str, Callable[[Any], Any]] = {
    "builtins.list": list, "builtins.tuple": tuple, "builtins.set": set, "builtins.frozenset": frozenset,
}  # fmt: skip
_NUMPY = {
    f"numpy{core}.{name}"
    for core in ("", ".core", "._core")
    for name in ("dtype", "multiarray.scalar", "multiarray._reconstruct", "numeric._frombuffer")
}
_NAMES = {*_CONTAINERS, *_LISTS, "builtins.slice", "builtins.range", "builtins.complex", "builtins.object"}
_NAMES |= {"_codecs.encode", "copyreg._reconstructor", "builtins.bytearray", "builtins.bytes", "builtins.getattr"}
_HOMES = (
    "neural_compressor", "numpy", "torch", "tensorflow", "keras", "onnx", "onnxruntime", "mxnet", "transformers",
    "ml_dtypes", "pathlib",
)  # fmt: skip
"""Whose classes Neural Compressor keeps in its files."""
_LONGEST = 100
_LARGEST_KEY = 1 << 32
_MOST_AXES = 32
_KINDS = "biufSUO"
"""Of numpy types that are plain values, or lists of such."""
_DEPTH = 200
_GROWTH = 16
"""Items or bytes that may come of one byte of a file."""


@dataclass
class Unknown:
    """Something of another tool that is neither a container nor a number."""

    name: str
    state: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[Any, ...] = ()


class _Inert:
    """Stands in for every class and function that a pickle names, and only remembers."""

    name = ""
    arguments: tuple[Any, ...]
    state: Any
    items: list[Any]
    entries: list[tuple[Any, Any]]

    def __new__(cls, *arguments: Any, **named: Any) -> _Inert:
        """Not __init__, which pickles leave out for most objects."""
        made = super().__new__(cls)
        made.arguments, made.state, made.items, made.entries = (*arguments, *named.values()), None, [], []
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries.append((key, value))

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Sequence[Any]) -> None:
        self.items.extend(items)

    add = append


def read_pickle(path: Path) -> Any:
    """Dicts, lists, numbers, texts and arrays; objects of other tools are `Unknown`, torch's tensors among them."""
    content = path.read_bytes()
    if not content:
        raise DataError(f"{path}: is empty; expected a pickle that Neural Compressor has written.")
    try:
        return _Plain(path, len(content)).of(_Reader(path, content).load(), 0)
    except DataError:
        raise
    except Exception as error:  # a broken or hostile pickle may fail in any way
        what = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
        raise DataError(f"{path}: cannot be read as a pickle ({what}); expected one of Neural Compressor.") from error


def read_if_there(path: Path, notes: list[str]) -> dict[Any, Any]:
    """Nothing where there is no such file; where it cannot be read a note says why."""
    try:
        found = read_pickle(path) if path.is_file() else {}
    except (DataError, OSError) as error:
        notes.append(why_unread(path, error))
        return {}
    if not isinstance(found, dict):
        notes.append(f"{path}: holds no dictionary; expected one of Neural Compressor.")
    return found if isinstance(found, dict) else {}


def why_unread(path: Path, error: DataError | OSError) -> str:
    return str(error) if isinstance(error, DataError) else f"{path}: cannot be read ({error.strerror})."


class _Reader(pickle._Unpickler):
    """In Python: a number in a pickle makes the C one take as much memory as it says.

    Dicts and sets are remembered, too: to make one of what a file says would compute the hash of its keys.
    """

    append: Callable[[Any], None]
    read: Callable[[int], bytes]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._path, self._size = path, len(content)
        self._made: dict[str, type[_Inert]] = {}

    def find_class(self, module: str, name: str) -> type[_Inert]:
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"  # as older protocols call it
        if full not in _NAMES and module.partition(".")[0] not in _HOMES:
            raise DataError(
                f"{self._path}: refers to {full[:_LONGEST]!r}, which files of Neural Compressor have no need of, so it "
                "is not read; nothing in it was executed."
            )
        return self._inert(full)

    def _inert(self, name: str) -> type[_Inert]:
        if name not in self._made:
            self._made[name] = type("_Inert", (_Inert,), {"name": name})
        return self._made[name]

    def _push(self, name: str, items: Sequence[Any] = (), entries: Sequence[tuple[Any, Any]] = ()) -> None:
        made = self._inert(f"builtins.{name}")()
        made.items, made.entries = list(items), list(entries)
        self.append(made)

    def _dict_of_marked(self) -> None:
        items = self.pop_mark()
        self._push("dict", entries=list(zip(items[::2], items[1::2], strict=False)))

    def _bytearray(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self._push("bytearray") if size > self._size else self.append(bytes(self.read(size)))

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.EMPTY_DICT[0]: lambda self: self._push("dict"),
        pickle.EMPTY_SET[0]: lambda self: self._push("set"),
        pickle.FROZENSET[0]: lambda self: self._push("frozenset", self.pop_mark()),
        pickle.DICT[0]: _dict_of_marked,
        pickle.BYTEARRAY8[0]: _bytearray,
    }


class _Plain:
    """Makes values of what was remembered; the same one for the same thing, so that nothing multiplies."""

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._left = path, _GROWTH * size
        self._done: dict[int, tuple[Any, Any]] = {}
        self._open: set[int] = set()

    def of(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, str | bytes | bytearray | bool | int | float | complex):
            return value
        if id(value) in self._done:
            return self._done[id(value)][1]
        if id(value) in self._open or depth > _DEPTH:
            raise DataError(f"{self._path}: what it holds contains itself, or is nested too deeply; it is not read.")
        self._open.add(id(value))
        made = self._made(value, depth + 1)
        self._open.discard(id(value))
        self._done[id(value)] = value, made  # kept, or another object might get its id
        return made

    def _take(self, count: int) -> None:
        """Before as many items or bytes are made: what is kept once in a file may be asked for any number of times."""
        self._left -= count
        if self._left < 0:
            raise DataError(f"{self._path}: holds far more than its size allows; it is not read.")

    def _made(self, value: Any, depth: int) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._list(value, depth))
        if isinstance(value, _Inert):
            return self._object(value, depth)
        if isinstance(value, type) and issubclass(value, _Inert):
            return Unknown(value.name)
        raise DataError(f"{self._path}: holds a {type(value).__name__}, which is not expected there; it is not read.")

    def _dict(self, entries: Any, depth: int) -> dict[Any, Any]:
        return {_key(self.of(key, depth)): self.of(item, depth) for key, item in entries}

    def _object(self, value: _Inert, depth: int) -> Any:
        arguments = tuple(self.of(argument, depth) for argument in value.arguments)
        last = value.name.rpartition(".")[2]
        if value.name in _CONTAINERS:
            given = next((a for a in arguments if isinstance(a, list | tuple | dict)), ())
            self._take(len(given))
            pairs = given.items() if isinstance(given, dict) else given
            return {**{_key(key): item for key, item in pairs}, **self._dict(value.entries, depth)}
        if value.name in _LISTS:
            first = next((a for a in arguments if isinstance(a, list | tuple | set | frozenset)), ())
            self._take(len(first))
            items = [*first, *self._list(value.items, depth)]
            return _LISTS[value.name](map(_key, items) if "set" in last else items)
        if value.name == "builtins.bytes" and not arguments:
            return b""
        if value.name == "_codecs.encode" and len(arguments) == 2 and isinstance(arguments[0], str):
            self._take(len(arguments[0]))
            return arguments[0].encode("latin1")
        if value.name in _NUMPY:
            state = self.of(value.state, depth)
            if last == "dtype":
                return _dtype(arguments, state)
            if last == "scalar":
                return self._array(arguments[1], arguments[0], ())[()].item()
            if last == "_reconstruct" and isinstance(state, tuple) and len(state) == 5:
                return self._array(state[4], state[2], state[1], "F" if state[3] else "C")
            if last == "_frombuffer":
                return self._array(*arguments[:4])
        return self._unknown(value, arguments, depth)

    def _array(self, data: Any, *described: Any) -> npt.NDArray[Any]:
        self._take(len(data) if isinstance(data, str | list) else 0)
        return _array(data, *described)

    def _list(self, items: Sequence[Any], depth: int) -> list[Any]:
        return [self.of(item, depth) for item in items]

    def _unknown(self, value: _Inert, arguments: tuple[Any, ...], depth: int) -> Unknown:
        """Of a tensor of torch its bytes are left where they are: they are a pickle of their own."""
        if value.name == "torch.storage._load_from_bytes":
            return Unknown(value.name)
        found = self.of(value.state, depth)
        parts = found if isinstance(found, tuple) else (found,)  # with slots there are two
        state = {str(key): item for part in parts if isinstance(part, dict) for key, item in part.items()}
        state.update((str(key), item) for key, item in self._dict(value.entries, depth).items())
        return Unknown(value.name, state, arguments)


def _key(value: Any) -> Any:
    """Names, small numbers, and tuples of them: others may take any time to compare."""
    parts = value if isinstance(value, tuple) else (value,)
    for part in parts:
        is_small = isinstance(part, int) and abs(part) < _LARGEST_KEY
        if not (part is None or is_small or isinstance(part, str | bytes)):
            raise ValueError(f"a {type(part).__name__} as a key")
    return value


def _dtype(arguments: tuple[Any, ...], state: Any) -> np.dtype[Any]:
    code, order = arguments[0], state[1] if isinstance(state, tuple) and len(state) > 1 else "="
    if not isinstance(code, str) or len(code) > _LONGEST:
        raise ValueError("an array of no type")
    found = np.dtype(code).newbyteorder(">" if order == ">" else "<" if order == "<" else "=")
    if found.kind not in _KINDS:
        raise ValueError(f"an array of type {code}")
    return found


def _array(data: Any, dtype: Any, shape: Any, order: Any = "C") -> npt.NDArray[Any]:
    """From its bytes; of texts and other objects from their list. Nothing is computed of numbers that are too large."""
    if not isinstance(dtype, np.dtype) or not isinstance(data, list | str | bytes | bytearray):
        raise ValueError("an array without its type or its values")
    sizes = shape if isinstance(shape, tuple) and len(shape) <= _MOST_AXES else (-1,)
    if any(not isinstance(size, int) or not 0 <= size < _LARGEST_KEY for size in sizes):
        raise ValueError("an array without a shape")
    if isinstance(data, list) != (dtype.kind == "O"):
        raise ValueError(f"an array of type {dtype} without its values")
    raw = data.encode("latin1") if isinstance(data, str) else data
    if len(raw) != (1 if isinstance(raw, list) else dtype.itemsize) * math.prod(sizes):
        raise ValueError(f"{len(raw)} values or bytes for an array of shape {sizes}")
    if isinstance(raw, list):
        found = np.empty(len(raw), object)
        found[:] = raw
    else:
        found = np.frombuffer(bytes(raw), dtype)
    return found.reshape(sizes, order="F" if order == "F" else "C")
