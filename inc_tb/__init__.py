"""Find out why a quantized model lost its accuracy. The public names, nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Eager, because these functions have the names of their modules: whatever is imported first, inc_tb.diagnose is the
# function.
from inc_tb.capture import Quantizer
from inc_tb.diagnose import diagnose
from inc_tb.diagnosis import Diagnosis
from inc_tb.errors import IncTbError
from inc_tb.probe import Probe, probe
from inc_tb.profile import profile
from inc_tb.records import Suggestion, Trial
from inc_tb.timing import Profile
from inc_tb.tune import Tuned, tune

if TYPE_CHECKING:
    from inc_tb.adapters.mxnet.quantizer import MxnetQuantizer
    from inc_tb.adapters.onnx.quantizer import OnnxRuntimeQuantizer
    from inc_tb.adapters.tensorflow.quantizer import TensorFlowQuantizer
    from inc_tb.adapters.torch.quantizer import TorchQuantizer
    from inc_tb.events import Run, SummaryWriter, load, log_diagnosis, log_histogram
    from inc_tb.importers.imports import import_workspace

__version__ = "0.1.0"
__all__ = [
    "Diagnosis", "IncTbError", "MxnetQuantizer", "OnnxRuntimeQuantizer", "Probe", "Profile", "Quantizer", "Run",
    "Suggestion", "SummaryWriter", "TensorFlowQuantizer", "TorchQuantizer", "Trial", "Tuned", "diagnose",
    "import_workspace", "load", "log_diagnosis", "log_histogram", "probe", "profile", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """The names that need TensorBoard's protocol buffers or a framework, which are loaded when first used."""
    if name == "integrations":
        return import_module("inc_tb.integrations")
    if name in ("Run", "SummaryWriter", "load", "log_diagnosis", "log_histogram"):
        from inc_tb import events

        return getattr(events, name)
    if name == "import_workspace":
        from inc_tb.importers.imports import import_workspace

        return import_workspace
    if name == "MxnetQuantizer":
        from inc_tb.adapters.mxnet.quantizer import MxnetQuantizer

        return MxnetQuantizer
    if name == "OnnxRuntimeQuantizer":
        from inc_tb.adapters.onnx.quantizer import OnnxRuntimeQuantizer

        return OnnxRuntimeQuantizer
    if name == "TensorFlowQuantizer":
        from inc_tb.adapters.tensorflow.quantizer import TensorFlowQuantizer

        return TensorFlowQuantizer
    if name == "TorchQuantizer":
        from inc_tb.adapters.torch.quantizer import TorchQuantizer

        return TorchQuantizer
    raise AttributeError(f"module 'inc_tb' has no attribute {name!r}")
