"""Find out why a quantized model lost its accuracy. The public names, nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inc_tb import integrations
    from inc_tb.advise.diagnose import diagnose
    from inc_tb.errors import IncTbError
    from inc_tb.frameworks.framework import Framework
    from inc_tb.frameworks.protocols import Quantizer
    from inc_tb.integrations.writers import log_diagnosis, log_histogram
    from inc_tb.measure.diagnosis import Diagnosis
    from inc_tb.profiling.profile import Profile
    from inc_tb.profiling.run import profile
    from inc_tb.records import Rewrite, Suggestion, Trial
    from inc_tb.search.probe import Probe, probe
    from inc_tb.sources.imports import import_workspace
    from inc_tb.sources.neural_compressor.config import TuningConfig, read_config
    from inc_tb.store.reader import Run, load
    from inc_tb.store.writer import SummaryWriter
    from inc_tb.trackers.live import LiveLog
    from inc_tb.trackers.log import log_to
    from inc_tb.tuning.applying import apply
    from inc_tb.tuning.attempt import Attempt
    from inc_tb.tuning.carry import load_model, save
    from inc_tb.tuning.loop import Tuned, tune
    from inc_tb.tuning.strategies.workbench import Attempts, Strategy, Workbench

__version__ = "0.1.0"
_HOMES = {
    "Attempt": "tuning.attempt", "Diagnosis": "measure.diagnosis", "Framework": "frameworks.framework",
    "IncTbError": "errors", "Probe": "search.probe", "Profile": "profiling.profile",
    "Quantizer": "frameworks.protocols", "Run": "store.reader", "Suggestion": "records",
    "SummaryWriter": "store.writer", "Trial": "records", "Tuned": "tuning.loop", "diagnose": "advise.diagnose",
    "import_workspace": "sources.imports", "load": "store.reader", "load_model": "tuning.carry",
    "log_diagnosis": "integrations.writers", "log_histogram": "integrations.writers", "probe": "search.probe",
    "profile": "profiling.run", "save": "tuning.carry", "tune": "tuning.loop",
    "Attempts": "tuning.strategies.workbench", "TuningConfig": "sources.neural_compressor.config",
    "read_config": "sources.neural_compressor.config", "Strategy": "tuning.strategies.workbench",
    "Workbench": "tuning.strategies.workbench", "Rewrite": "records", "apply": "tuning.applying",
    "LiveLog": "trackers.live", "log_to": "trackers.log",
}  # fmt: skip
"""Where each public name is. Nothing is loaded before it is used: not TensorBoard's protocol buffers, no framework."""
__all__ = [
    "Attempt", "Attempts", "Diagnosis", "Framework", "IncTbError", "LiveLog", "Probe", "Profile", "Quantizer",
    "Rewrite", "Run", "Strategy", "Suggestion", "SummaryWriter", "Trial", "Tuned", "TuningConfig", "Workbench",
    "apply", "diagnose", "import_workspace", "integrations", "load", "load_model", "log_diagnosis", "log_histogram",
    "log_to", "probe", "profile", "read_config", "save", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Also the quantizers of the frameworks, by the names of their classes."""
    if name == "integrations":
        return import_module("inc_tb.integrations")
    if name in _HOMES:
        return getattr(import_module(f"inc_tb.{_HOMES[name]}"), name)
    if name.endswith("Quantizer"):
        from inc_tb.frameworks.registry import find_tool

        found = find_tool(name)
        if found is not None:
            framework, tool = found
            return framework.part(tool.place)
    raise AttributeError(f"module 'inc_tb' has no attribute {name!r}")


def __dir__() -> list[str]:
    from inc_tb.frameworks.registry import frameworks

    return sorted([*__all__, *(tool.name for framework in frameworks() for tool in framework.tools)])
