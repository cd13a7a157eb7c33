"""A trial of Neural Compressor in the words of the tool that makes its model here, and what these cannot say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from inc_tb.errors import UsageError
from inc_tb.frameworks.framework import Framework
from inc_tb.frameworks.models import read_graph
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.frameworks.registry import framework_of
from inc_tb.locks import TemporaryFolder
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Trial, listed

_TOOL = "Neural Compressor"
_WITH_WEIGHTS = ("conv", "matmul", "gemm", "linear", "fully", "dense")
"""What the types of ops have in them whose weights matter; others are given a config as well."""
_SPLIT = ("_MatMul", "_Add")
"""What it puts behind the name of a Gemm that it has made two ops of."""
_RECIPES = ("smooth_quant", "fast_bias_correction", "weight_correction", "layer_wise_quant")


class Translated(NamedTuple):
    quantizer: Quantizer
    trial: Trial
    """With the settings of that quantizer, and ops as the model names them."""
    samples: int | None
    notes: list[str]


class _Told(NamedTuple):
    """What the trial's config says of all quantized ops: the most frequent, and a note where ops differ."""

    config: Mapping[str, Any]
    table: Mapping[str, Sequence[str]]
    notes: list[str]

    def one(self, setting: str, column: str = "") -> str:
        """From the ops with weights where it is known for each, else the first of what the config lists."""
        values = [value for value in self.table.get(column, ()) if value]
        found = list(Counter(values or str(self.config.get(setting, "")).split(" / ")))
        found.sort(key=lambda value: -values.count(value))
        if len(found) > 1:
            self.notes.append(
                f"{setting} differed from op to op ({', '.join(found)}); the tool takes one for all: {found[0]}"
            )
        return found[0]


def is_foreign(trial: Trial) -> bool:
    """Whether Neural Compressor has made it; of what was read off a log there is no config."""
    return (
        not trial.config or str(trial.config.get("tool", "")).startswith(_TOOL) or "weight_granularity" in trial.config
    )


def translated(trial: Trial, diagnosis: Diagnosis | None, model: Any) -> Translated:
    """The quantizer of the model's framework, set as the trial was, as far as it can be."""
    framework = framework_of(model)
    _check(trial, diagnosis, framework)
    notes: list[str] = []
    told = _Told(trial.config, _quantized_with_weights(diagnosis), notes)
    settings = _WAYS[framework.name](told)
    notes += _left_out(trial)
    with TemporaryFolder() as folder:
        scratch = framework.make_quantizer(settings)
        prepared = scratch.prepare(model, Path(folder))
        kept = _names(trial.fallback, _op_names(framework, prepared), scratch, notes)
        made = {**scratch.settings}
    samples = trial.config.get("calibration_samples")
    number = samples if isinstance(samples, int) and samples > 0 else None
    return Translated(framework.make_quantizer(settings), replace(trial, config=made, fallback=kept), number, notes)


def _check(trial: Trial, diagnosis: Diagnosis | None, framework: Framework) -> None:
    theirs = diagnosis.framework if diagnosis is not None else ""
    if theirs and theirs != framework.name:
        raise UsageError(
            f"{trial.name} is of a model of another framework ({theirs}), the given model is one of {framework.title}. "
            "Give the model that was tuned."
        )
    if framework.name not in _WAYS:
        raise UsageError(
            f"{trial.name}: Neural Compressor quantizes models of {framework.title} with other tools than inc-tb, "
            "which cannot rebuild the trial. Recover it with neural_compressor.utils.utility.recover."
        )
    approach = str(trial.config.get("approach", ""))
    if "weight_only" in approach or str(trial.config.get("weight_bits", 8)) not in ("7", "7.0", "8", "8.0"):
        raise UsageError(f"{trial.name} quantizes weights only, which is not rebuilt; expected a trial in int8.")
    if not trial.config.get("activation_dtype"):
        raise UsageError(
            f"{trial.name}: nothing is known of its config, so it cannot be rebuilt. Import its history.snapshot."
        )


def _quantized_with_weights(diagnosis: Diagnosis | None) -> dict[str, list[str]]:
    """Columns of the op table, of these ops."""
    if diagnosis is None:
        return {}
    ops = diagnosis.ops
    rows = [
        row for row in range(ops.count)
        if ops["weight_dtype"][row] and any(part in str(ops["type"][row]).lower() for part in _WITH_WEIGHTS)
    ]  # fmt: skip
    columns = ("weight_dtype", "weight_granularity", "act_dtype", "act_scheme")
    return {column: [str(ops[column][row]) for row in rows] for column in columns}


def _onnx(told: _Told) -> dict[str, Any]:
    return {
        "approach": "dynamic" if _is_dynamic(told) else "static",
        "format": "QDQ" if told.config.get("quant_format") == "QDQ" else "QOperator",
        "calibrator": _calibrator(told, {"kl": "entropy"}),
        "per_channel": _is_per_channel(told),
        "reduce_range": _is_reduced(told, otherwise=False),
        "activation_type": told.one("activation_dtype", "act_dtype"),
        "weight_type": told.one("weight_dtype", "weight_dtype"),
        "symmetric": told.one("activation_scheme", "act_scheme").startswith("sym"),
    }


def _torch(told: _Told) -> dict[str, Any]:
    return {
        "approach": "dynamic" if _is_dynamic(told) else "static",
        "calibrator": _calibrator(told, {"kl": "histogram"}),
        "per_channel": _is_per_channel(told),
        "reduce_range": _is_reduced(told, otherwise=True),
    }


def _mxnet(told: _Told) -> dict[str, Any]:
    """It asks MXNet for the same mode and granularity whatever the config says."""
    calibration = _calibrator(told, {"kl": "entropy", "minmax": "naive"})
    return {"calibration": calibration, "quantize_mode": "smart", "granularity": "tensor-wise"}


_WAYS: Mapping[str, Callable[[_Told], dict[str, Any]]] = {"onnx": _onnx, "torch": _torch, "mxnet": _mxnet}


def _is_dynamic(told: _Told) -> bool:
    return told.one("activation_quant_mode") == "dynamic"


def _is_per_channel(told: _Told) -> bool:
    return told.one("weight_granularity", "weight_granularity").replace("_", " ") == "per channel"


def _calibrator(told: _Told, words: Mapping[str, str]) -> str:
    name = told.one("activation_algorithm")
    if name not in ("minmax", *words):
        told.notes.append(
            f"activation_algorithm {name or '(not recorded)'} cannot be told to this tool: minmax is used"
        )
        name = "minmax"
    return words.get(name, name)


def _is_reduced(told: _Told, *, otherwise: bool) -> bool:
    known = told.config.get("reduce_range")
    if isinstance(known, bool):
        return known
    told.notes.append(
        f"whether one bit was left unused is not recorded, as it may depend on the processor: reduce_range={otherwise}"
    )
    return otherwise


def _left_out(trial: Trial) -> Iterable[str]:
    """Recipes that change the model, and are not carried out here. Those that keep ops in fp32 are in the fallback."""
    on = [name for name in _RECIPES if trial.config.get(name) is True]
    if on:
        yield f"{' and '.join(on)} was carried out in the trial, and is not here"


def _op_names(framework: Framework, prepared: Any) -> list[str]:
    """Of a PyTorch model, whose ops show only when it runs, the modules: Neural Compressor has their names."""
    if framework.name == "torch":
        return [name for name, _ in prepared.named_modules() if name]
    return [node.name for node in read_graph(prepared)]


def _names(fallback: Sequence[str], known: Sequence[str], tool: Quantizer, notes: list[str]) -> list[str]:
    """The ops as the model names them; those that it does not have are noted."""
    joined: Mapping[str, Sequence[str]] = getattr(tool, "joined", {})
    found: dict[str, None] = {}
    missing: list[str] = []
    for name in fallback:
        base = next((name.removesuffix(end) for end in _SPLIT if name.endswith(end)), name)
        ops = [name] if name in known else [base] if base in known else list(joined.get(name, ()))
        found |= dict.fromkeys(ops)
        if not ops:
            missing.append(name)
        elif base in ops and not {f"{base}{end}" for end in _SPLIT} <= {*fallback, base}:
            notes += [f"{name} is a part of {base}, which is kept whole"] if name != base else []
    if missing:
        notes.append(
            f"kept in fp32 in the trial, but no op of the given model by name, so not kept here: {listed(missing)}"
        )
    return list(found)
