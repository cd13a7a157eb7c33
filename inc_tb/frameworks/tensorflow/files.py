"""Which files are TensorFlow's, by their names and places alone."""

from __future__ import annotations

from pathlib import Path


def is_checkpoint(path: Path) -> bool:
    """Weights without their graph; also the name that all files of one begin with."""
    of_tensorflow = path.suffix in (".index", ".ckpt", ".meta") or path.name == "checkpoint" or ".data-0" in path.name
    is_there = path.is_file() and (of_tensorflow or path.name.endswith(".weights.h5"))
    return is_there or (not path.exists() and Path(f"{path}.index").is_file())
