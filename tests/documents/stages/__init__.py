"""What the pages take for granted: models, samples and code of the reader's own, small ones here.

Each stage fills the current folder. Only what a page needs is loaded.
"""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path

_STAGES = {
    "README.md": "onnx",
    "docs/language-models.md": "language_models",
    "docs/ci.md": "ci",
    "docs/mxnet.md": "mxnet",
    "docs/neural-compressor.md": "neural_compressor",
    "docs/notebook.md": "onnx",
    "docs/onnx.md": "onnx",
    "docs/page.md": "page",
    "docs/profiling.md": "onnx",
    "docs/pytorch.md": "pytorch",
    "docs/scale.md": "onnx",
    "docs/tensorflow.md": "tensorflow",
    "docs/trackers.md": "trackers",
    "docs/tuning.md": "tuning",
    "docs/what-it-measures.md": "onnx",
}


def prepare(page: str) -> None:
    import_module(f"tests.documents.stages.{_STAGES[page]}").prepare()


def copy_code(folder: str) -> None:
    """Files that a reader would have written."""
    shutil.copytree(Path(__file__).parents[1] / "code" / folder, ".", dirs_exist_ok=True)
