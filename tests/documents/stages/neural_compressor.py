from __future__ import annotations

import shutil
from importlib.metadata import version

from tests.digits import DATA
from tests.documents.stages import copy_code


def prepare() -> None:
    """Its versions 2 and 3 are called in different ways."""
    shutil.copy(DATA / "hard.onnx", "fp32.onnx")
    copy_code(f"neural_compressor_{version('neural-compressor')[0]}")
