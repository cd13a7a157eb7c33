from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from tests.documents.blocks import ROOT


def prepare() -> None:
    """Logs of two runs, and models where they can be made; trackers write here and call nobody."""
    for name, golden in (("trial-001", "later/samples"), ("trial-002", "v2")):
        shutil.copytree(ROOT / "tests" / "golden" / golden, Path("nc_workspace", name))
    here = {name: str(Path(name).absolute()) for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR")}
    os.environ.update(here, WANDB_MODE="offline", MLFLOW_DISABLE_TELEMETRY="true")
    if find_spec("onnxruntime") is not None:
        from tests.documents.stages.onnx import prepare as prepare_models

        prepare_models()
