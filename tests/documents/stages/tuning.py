from __future__ import annotations

from pathlib import Path

import msgspec

import inc_tb
from inc_tb.frameworks.registry import framework_of
from inc_tb.tuning.calibration import calibration_data
from tests.documents.stages import onnx
from tests.sources.workspaces import unpack


def prepare() -> None:
    """As for ONNX, a trial that has rewritten the network, and a workspace in which Neural Compressor has tuned it."""
    onnx.prepare()
    _rewrite()
    name = "v26_onnx_qop_hard_msev2_tune"
    (unpack(Path(), [name]) / name).rename("tuned_by_neural_compressor")


def _rewrite() -> None:
    tool = inc_tb.OnnxRuntimeQuantizer()
    prepared = tool.prepare(Path("fp32.onnx"), Path("earlier"))
    rewrites = framework_of(prepared).find_rewrites(prepared, calibration_data(prepared, "samples.npz", None))
    with inc_tb.SummaryWriter("earlier/trial-002") as writer:
        writer.add_trial(inc_tb.Trial("trial-002", config={**tool.settings, "rewrites": msgspec.to_builtins(rewrites)}))
