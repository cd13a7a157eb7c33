"""Real workspaces of Neural Compressor, unpacked; and history files made up in its own form."""

from __future__ import annotations

import json
import pickle
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.digits import DATA

PACKED = DATA / "inc"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in PACKED.glob("*.tar.xz"))
HISTORIES = [name for name in NAMES if (PACKED / f"{name}.history.json").exists()]
DIAGNOSED = {
    "onnx": "v241_onnx_qop_hard_diag", "tensorflow": "v26_tf_hard_diag", "torch": "v26_torch213_hard_static_diag",
    "crashed": "v26_onnx_qop_clean_diag_CRASHED",
}  # fmt: skip


def unpack(folder: Path, names: Sequence[str] = NAMES) -> Path:
    for name in names:
        with tarfile.open(PACKED / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    return folder


def files_in(name: str) -> list[str]:
    with tarfile.open(PACKED / f"{name}.tar.xz") as archive:
        return [member.name.partition("/")[2] for member in archive if member.isfile()]


def decoded(name: str) -> dict[str, Any]:
    """What the history holds, decoded by somebody else."""
    (session,) = json.loads((PACKED / f"{name}.history.json").read_text())["sessions"]
    found: dict[str, Any] = session
    return found


def snapshot(
    trials: Sequence[Mapping[str, Any]],
    baseline: float = 0.9,
    *,
    sessions: int = 1,
    framework: str = "onnxruntime",
    **criterion: Any,
) -> bytes:
    """A history as Neural Compressor pickles one, with classes that exist only while it is made."""
    names = {
        "neural_compressor.config": ("PostTrainingQuantConfig", "AccuracyCriterion", "TuningCriterion"),
        "neural_compressor.strategy.basic": ("BasicTuneStrategy",),
    }
    made: dict[str, Any] = {}
    before = {name: sys.modules.get(name) for name in names}
    try:
        for module, classes in names.items():
            sys.modules[module] = ModuleType(module)
            for name in classes:
                made[name] = type(name, (), {"__module__": module})
                setattr(sys.modules[module], name, made[name])

        def instance(kind: str, **state: Any) -> Any:
            found = made[kind]()
            found.__dict__.update({f"_{key}": value for key, value in state.items()})
            return found

        config = instance(
            "PostTrainingQuantConfig", framework=framework, approach="post_training_static_quant",
            accuracy_criterion=instance("AccuracyCriterion", **criterion),
            tuning_criterion=instance("TuningCriterion", strategy="basic", objective=["performance"]),
        )  # fmt: skip
        session = {"version": "2.6", "cfg": config, "baseline": (baseline, [1.0]), "best_tune_result": None}
        strategy = made["BasicTuneStrategy"]()
        strategy.__dict__["tuning_history"] = [{**session, "history": list(trials)}] * sessions
        return pickle.dumps(strategy)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def tried(number: int, accuracy: Any, fallback: Sequence[str] = (), ops: Sequence[str] = ("a", "b")) -> dict[str, Any]:
    """One entry of a history."""
    int8 = {
        "weight": {"dtype": "int8", "granularity": "per_channel"},
        "activation": {"dtype": "uint8", "scheme": "asym"},
    }
    fp32 = {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}
    config = {(op, "Conv"): fp32 if op in fallback else int8 for op in ops}
    return {"tune_cfg": {"op": config, "trial_number": number}, "tune_result": (accuracy, [0.5]), "q_config": {}}
