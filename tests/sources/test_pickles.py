"""Pickles of others: what they say, and that nothing in them is ever called."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from inc_tb.errors import DataError
from inc_tb.sources.pickles import Unknown, read_pickle
from tests.waiting import PATIENCE_S


def read(tmp_path: Path, content: bytes) -> Any:
    path = tmp_path / "some.pkl"
    path.write_bytes(content)
    return read_pickle(path)


def read_or_told(tmp_path: Path, content: bytes) -> Any:
    """What it holds, or the line that says why it cannot be read."""
    try:
        return read(tmp_path, content)
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_come_back_as_they_were(tmp_path: Path, protocol: int) -> None:
    shared = [1, 2]
    value = {
        "numbers": [0, -5, 2**70, 1.5, True, None], "texts": ("ä", b"\xff"), ("a", "Conv"): {"x": shared, "y": shared},
        "sets": {1, 2}, "frozen": frozenset({"a"}), "ordered": collections.OrderedDict(b=1, a=2),
        "default": collections.defaultdict(list, {"k": [1]}),
    }  # fmt: skip
    found = read(tmp_path, pickle.dumps(value, protocol))
    assert found == value
    assert list(found["ordered"]) == ["b", "a"]
    assert type(found["default"]) is dict


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(3.5),
    np.zeros((0, 4)), np.array(["a", "bc"]), np.array([True]), np.arange(3, dtype=">i2"),
    np.array([1, "x", None], object),
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}-{a.shape}")
def test_arrays(tmp_path: Path, array: np.ndarray[Any, Any], protocol: int) -> None:
    found = read(tmp_path, pickle.dumps({"a": array, "scalar": np.float32(0.1)}, protocol))
    np.testing.assert_array_equal(found["a"], array)
    assert found["a"].dtype.kind == array.dtype.kind
    assert found["scalar"] == pytest.approx(0.1)
    assert type(found["scalar"]) is float


class Trap:
    """Touches a file when it is called or built."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_a_hostile_file_executes_nothing_and_is_named(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(DataError, match=r"some\.pkl: refers to 'posix\.system'.*nothing in it was executed") as told:
        read(tmp_path, pickle.dumps({"weight": Trap(mark)}))
    assert "\n" not in str(told.value)
    assert not mark.exists()


CALLS = {
    "eval": b"cbuiltins\neval\n(S'open(\"mark\", \"w\")'\ntR.", "inst": b"(S'touch mark'\nios\nsystem\n.",
    "obj": b"(cos\nsystem\nS'touch mark'\no.", "import": b"c__builtin__\n__import__\n(S'os'\ntR.",
    "getattr": b"cbuiltins\ngetattr\n(cbuiltins\ngetattr\nS'__self__'\ntR.",
    "class": b"cneural_compressor.x\nY\n(tR(dS'z'\nI1\nsb.", "state of a class": b"ctorch\nY\n}b.",
    "extension": b"\x80\x02\x82\x01.", "persistent": b"Pmark\n.", "stack": b"0.", "cut off": b"\x80\x04]",
    "numpy": b"cnumpy\ndtype\n(S'V8'\ntR.",
    "object": b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O'\ntRS'x'\ntR.",
    "too short": pickle.dumps(np.arange(9))[:-9], "text": b"hello", "zeros": b"\0" * 50,
}  # fmt: skip


@pytest.mark.parametrize("content", CALLS.values(), ids=CALLS)
def test_whatever_is_called_is_only_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    found = read_or_told(tmp_path, content)
    assert isinstance(found, Unknown) or found.startswith(f"{tmp_path / 'some.pkl'}: ")
    assert "\n" not in str(found)
    assert not (tmp_path / "mark").exists()


def test_a_pickle_inside_of_a_tensor_is_left_where_it_is(tmp_path: Path) -> None:
    """As torch nests one; opened by nobody, so the trap inside does not even make the file suspicious."""
    inner = pickle.dumps(Trap(tmp_path / "mark"))
    content = b"\x80\x02ctorch.storage\n_load_from_bytes\n" + pickle.dumps((inner,), 2)[2:-1] + b"R."
    found = read(tmp_path, content)
    assert found == Unknown("torch.storage._load_from_bytes")
    assert not (tmp_path / "mark").exists()


def test_numbers_in_a_pickle_take_no_memory(tmp_path: Path) -> None:
    """A place in the memo at two thousand million: the reader in C would make room for all before it."""
    assert read(tmp_path, b"\x80\x02K\x01r" + struct.pack("<I", 2**31 - 1) + b".") == 1
    with pytest.raises(DataError, match="cannot be read as a pickle"):
        read(tmp_path, b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.")


BOMBS = {
    "a tuple as deep as a key": b"\x80\x02})" + b"\x85" * 300_000 + b"K\x01s.",
    "a tuple that doubles as a key": b"\x80\x02})" + b"2\x86" * 40 + b"K\x01s.",
    "a list that doubles as a key": b"\x80\x02cbuiltins\ndict\n)R]" + b"2\x86" * 40 + b"K\x01s.",
    "keys of one hash": pickle.dumps({i * (2**61 - 1): 0 for i in range(200)}),
    "in a set": b"\x80\x04\x8f(" + b")" + b"2\x86" * 40 + b"\x90.",
    "frozen": b"\x80\x04()" + b"2\x86" * 40 + b"\x91.",
    "bytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "a number as bytes": b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I2000000000\nt"
    b"cnumpy\ndtype\n(S'u1'\ntRI00\nI2000000000\ntb.",
    "a type that doubles": b"\x80\x02cnumpy\ndtype\n]" + b"2\x86" * 40 + b"\x85R.",
    "a text that doubles": b"\x80\x02c_codecs\nencode\n]" + b"2\x86" * 40 + b"X\x06\x00\x00\x00latin1\x86R.",
    "a number of a type that doubles": b"\x80\x02cnumpy.core.multiarray\nscalar\n]" + b"2\x86" * 40 + b"U\x01x\x86R.",
    "a shape of large numbers": b"\x80\x02cnumpy.core.numeric\n_frombuffer\n(U\x01xcnumpy\ndtype\nU\x02u1\x85R(\x8b"
    + struct.pack("<i", 4000) + b"\x01" * 4000 + b"q\x01" + b"h\x01" * 40_000 + b"tU\x01CtR.",
    "lists of the same bytes": b"\x80\x04B" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20)
    + b"q\x01cbuiltins\nlist\nq\x02](" + b"h\x02h\x01\x85R" * 1000 + b"e.",
    "lists of the same list": b"\x80\x04](" + b"N" * 10_000 + b"eq\x01cbuiltins\nlist\nq\x02]("
    + b"h\x02h\x01\x85R" * 100_000 + b"e.",
    "bytes of the same text": b"\x80\x04X" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20)
    + b"q\x01c_codecs\nencode\nq\x02X\x06\x00\x00\x00latin1q\x03](" + b"h\x02h\x01h\x03\x86R" * 4000 + b"e.",
    "a long name of a type": b"\x80\x02cnumpy\ndtype\nX" + struct.pack("<I", 200_000) + b"f" * 200_000 + b"\x85R.",
}  # fmt: skip
READ_ALL = """
import resource, sys
from pathlib import Path
from inc_tb.errors import DataError
from inc_tb.sources.pickles import read_pickle
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        read_pickle(path)
    except DataError as error:
        assert str(error).startswith(f"{path}: ") and len(str(error)) < 500, str(error)[:1000]
    except MemoryError:
        sys.exit(f"{path.name}: out of memory")
    print(path.name, flush=True)
"""


def test_small_files_take_neither_time_nor_memory(tmp_path: Path) -> None:
    for name, content in BOMBS.items():
        (tmp_path / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, tmp_path], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.stdout.splitlines() == sorted(BOMBS), done.stderr


def test_long_names_are_cut(tmp_path: Path) -> None:
    told = read_or_told(tmp_path, b"c" + b"a" * 1_000_000 + b"\nb\n.")
    assert len(told) < 500


@pytest.mark.parametrize("name", ["numpy.bool_", "pathlib.PosixPath", "ml_dtypes.bfloat16", "transformers.x.Batch"])
def test_harmless_classes_of_others_do_not_spoil_a_file(tmp_path: Path, name: str) -> None:
    module, _, last = name.rpartition(".")
    content = b"\x80\x02}X\x01\x00\x00\x00ac" + f"{module}\n{last}\n".encode() + b")Rs."
    assert read(tmp_path, content) == {"a": Unknown(name)}


def test_what_holds_itself_or_multiplies(tmp_path: Path) -> None:
    own: list[Any] = []
    own.append(own)
    with pytest.raises(DataError, match="contains itself"):
        read(tmp_path, pickle.dumps(own))
    laughs: list[Any] = ["ha"]
    for _ in range(150):
        laughs = [laughs, laughs]
    found = read(tmp_path, pickle.dumps(laughs))
    assert found[0] is found[1]
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    with pytest.raises(DataError, match="nested too deeply"):
        read(tmp_path, pickle.dumps(deep))


def test_empty_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is empty; expected a pickle"):
        read(tmp_path, b"")
    with pytest.raises(FileNotFoundError):
        read_pickle(tmp_path / "nowhere.pkl")


@hypothesis.given(st.binary(max_size=200), st.integers(0, 150))
def test_damaged_files_are_one_line(tmp_path_factory: pytest.TempPathFactory, noise: bytes, place: int) -> None:
    whole = pickle.dumps({"op": [np.arange(4.0), ("a", 1)], "x": collections.OrderedDict(a=1)})
    folder = tmp_path_factory.mktemp("damaged")
    found = read_or_told(folder, whole[:place] + noise + whole[place + len(noise) :])
    assert not isinstance(found, str) or (found.startswith(str(folder / "some.pkl")) and "\n" not in found)


def test_objects_keep_their_state(tmp_path: Path) -> None:
    out = io.BytesIO()
    content = b"\x80\x02cneural_compressor.config\n_Config\n)\x81}X\x02\x00\x00\x00_aK\x01sb."
    pickletools.dis(content, out=io.TextIOWrapper(out))  # it is well formed
    assert read(tmp_path, content) == Unknown("neural_compressor.config._Config", {"_a": 1})
