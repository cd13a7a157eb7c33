from __future__ import annotations

from pathlib import Path

from tests.documents.stages import onnx
from tests.sources.workspaces import unpack


def prepare() -> None:
    """As for ONNX, and a workspace that Neural Compressor has tuned the same network in."""
    onnx.prepare()
    name = "v26_onnx_qop_hard_msev2_tune"
    (unpack(Path(), [name]) / name).rename("tuned_by_neural_compressor")
