from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy

from inc_tb.data import open_data
from inc_tb.errors import DataError, IncTbError, MismatchError
from inc_tb.frameworks.ops import Input

ONE = [Input("x", np.dtype(np.float32), (None, 3))]
TWO = [*ONE, Input("ids", np.dtype(np.int64), (None,))]
X = np.arange(30, dtype=np.float32).reshape(10, 3)
IDS = np.arange(10)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_in_batches(tmp_path: Path, save: object) -> None:
    save(tmp_path / "d.npz", x=X, ids=IDS, labels=IDS)
    data = open_data(tmp_path / "d.npz", TWO, batch_size=4)
    assert data.samples == 10
    for _ in range(2):  # can be gone through again
        batches = list(data)
        assert [len(b["x"]) for b in batches] == [4, 4, 2]
        assert set(batches[0]) == {"x", "ids"}  # labels are for somebody else
        np.testing.assert_array_equal(np.concatenate([b["x"] for b in batches]), X)


def test_npy_for_a_model_with_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", X)
    (batch,) = open_data(tmp_path / "d.npy", ONE)
    np.testing.assert_array_equal(batch["x"], X)


def test_folder_of_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X[:4], ids=IDS[:4])
    np.savez(tmp_path / "b.npz", x=X[4:], ids=IDS[4:])
    data = open_data(tmp_path, TWO)
    assert data.samples == 10
    np.testing.assert_array_equal(np.concatenate([b["ids"] for b in data]), IDS)


def test_folder_with_one_file_an_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "ids.npy", IDS)
    (batch,) = open_data(tmp_path, TWO)
    assert batch["x"].shape == (10, 3)
    assert batch["ids"].shape == (10,)


def test_onnx_test_data(tmp_path: Path) -> None:
    from onnx import numpy_helper

    for i in range(2):
        folder = tmp_path / f"test_data_set_{i}"
        folder.mkdir()
        (folder / "input_0.pb").write_bytes(numpy_helper.from_array(X + i, "x").SerializeToString())
        (folder / "input_1.pb").write_bytes(numpy_helper.from_array(IDS, "ids").SerializeToString())
    batches = list(open_data(tmp_path, TWO))
    assert [float(b["x"][0, 0]) for b in batches] == [0, 1]


def test_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import numpy as np\ndef batches():\n    yield {'x': np.zeros((5, 3), 'f')}\n")
    (batch,) = open_data(f"{tmp_path / 'mine.py'}:batches", ONE)
    assert batch["x"].shape == (5, 3)


def test_a_fixed_batch_size_is_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", X)
    fixed = [Input("x", np.dtype(np.float32), (4, 3))]
    assert [len(b["x"]) for b in open_data(tmp_path / "d.npy", fixed)] == [4, 4]


def test_a_fixed_batch_size_and_too_few_samples(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", X)
    fixed = [Input("x", np.dtype(np.float32), (4, 3))]
    assert [len(b["x"]) for b in open_data(tmp_path / "d.npy", fixed).first(7)] == [4]
    with pytest.raises(DataError, match="10 samples, the model takes 16 at once"):
        open_data(tmp_path / "d.npy", [Input("x", np.dtype(np.float32), (16, 3))])


def test_other_arrays_may_be_anything(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, accuracy=0.9, names=np.array([{}]))
    assert open_data(tmp_path / "d.npz", ONE).samples == 10


def test_damage_that_shows_late(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez_compressed(tmp_path / "d.npz", x=rng.standard_normal((4000, 3)).astype(np.float32))
    damaged = bytearray((tmp_path / "d.npz").read_bytes())
    damaged[len(damaged) * 3 // 4] ^= 0xFF
    (tmp_path / "d.npz").write_bytes(damaged)
    with pytest.raises(DataError, match="damaged"):
        list(open_data(tmp_path / "d.npz", ONE))


def test_functions_may_use_dataclasses_neighbors_and_return(tmp_path: Path) -> None:
    (tmp_path / "neighbor.py").write_text("import numpy as np\nROWS = np.zeros((5, 3), 'f')\n")
    (tmp_path / "mine2.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom neighbor import ROWS\n"
        "@dataclass\nclass C:\n    x: int\ndef one():\n    return {'x': ROWS}\n"
    )
    (batch,) = open_data(f"{tmp_path / 'mine2.py'}:one", ONE)
    assert batch["x"].shape == (5, 3)


def test_only_the_first_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X)
    data = open_data(tmp_path / "d.npz", ONE, batch_size=4).first(6)
    assert data.samples == 6
    assert [len(b["x"]) for b in data] == [4, 2]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    import tracemalloc

    def peak(rows: int) -> int:
        np.savez_compressed(tmp_path / f"{rows}.npz", x=np.zeros((rows, 30_000), np.float32))
        tracemalloc.start()
        for _ in open_data(tmp_path / f"{rows}.npz", [Input("x", np.dtype(np.float32), (None, 30_000))], 8):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(400) < 1.05 * peak(100)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda d: d / "missing.npz", DataError, ["no such file", "expected"]),
        (lambda d: _write(d / "text.npz", b"hello"), DataError, ["not a readable numpy file"]),
        (lambda d: _write(d / "text.npy", b"hello"), DataError, ["not a readable numpy file"]),
        (lambda d: _write(d / "text.csv", b"1,2"), DataError, ["cannot be read as data", "expected a .npz"]),
        (lambda d: _save(d / "names.npz", y=X), MismatchError, ["['y']", "['x']", "Name the arrays"]),
        (lambda d: _save(d / "objects.npz", x=np.array([{}, {}])), DataError, ["never unpickled"]),
        (lambda d: _save(d / "scalar.npz", x=np.float32(1)), DataError, ["single number"]),
        (lambda d: _save(d / "order.npz", x=np.asfortranarray(X)), DataError, ["ascontiguousarray"]),
        (lambda d: f"{d / 'none.py'}:f", DataError, ["no such file", "file.py:function"]),
        (lambda d: f"{_write(d / 'empty.py', b'')}:f", DataError, ["no function 'f'"]),
        (lambda d: f"{_write(d / 'broken.py', b'1/0')}:f", DataError, ["ZeroDivisionError"]),
        (lambda d: f"{_write(d / 'raises.py', b'def f(): raise KeyError(7)')}:f", DataError, ["KeyError"]),
        (lambda d: d, DataError, ["without .npz or .npy"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, make: object, error: type[IncTbError], says: list[str]
) -> None:
    with pytest.raises(error) as caught:
        list(open_data(make(tmp_path), ONE))
    message = str(caught.value)
    assert "\n" not in message
    for part in says:
        assert part in message


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", X)
    whole = (tmp_path / "d.npy").read_bytes()
    (tmp_path / "d.npy").write_bytes(whole[:-8])
    with pytest.raises(DataError, match="cut off"):
        list(open_data(tmp_path / "d.npy", ONE))


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def _npy(path: Path, header: str, body: bytes = b"") -> Path:
    """As numpy writes it, with any header."""
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return _write(path, b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body)


@pytest.mark.parametrize(
    "header",
    [
        "(",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1000000000000), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 0), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 300,
        "{'descr': [('', '<f4')] , 'fortran_order': 7, 'shape': (True, 3), }",
    ],
)
def test_headers_that_claim_anything(tmp_path: Path, header: str) -> None:
    with pytest.raises(DataError, match="not a readable numpy file"):
        next(iter(open_data(_npy(tmp_path / "d.npy", header, bytes(24)), ONE)))


def test_a_small_file_is_not_unpacked_into_a_large_sample(tmp_path: Path) -> None:
    """10 GB of zeros in 10 MB: their header is all that is read."""
    name = tmp_path / "bomb.npz"
    claimed = (1, 10 << 30)
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        npy.write_array_header_1_0(file, {"descr": "|i1", "fortran_order": False, "shape": claimed})
        file.write(bytes(1 << 20))
    with pytest.raises(DataError, match=r"one sample of it takes 10\.7 GB"):
        open_data(name, [Input("x", np.dtype(np.int8), (None, None))])
