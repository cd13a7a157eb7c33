"""ONNX Runtime's own quantization tool behind the Quantizer protocol."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import logging
import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import version_converter
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
from onnxruntime.quantization.shape_inference import quant_pre_process

from inc_tb.errors import IncTbError, ModelError, UsageError, first_line
from inc_tb.frameworks.choices import Choices, check_choices
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.onnx.formats import CALIBRATORS, TYPES, long_type, nodes_to_exclude
from inc_tb.frameworks.onnx.model import name_nodes, whole
from inc_tb.frameworks.onnx.rewrites import apply_rewrites
from inc_tb.frameworks.ops import Batch, Range
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.templates import write
from inc_tb.locks import TemporaryFolder
from inc_tb.records import Rewrite, Suggestion

_CHOICES: Choices = {
    "approach": ("static", "dynamic"),
    "format": ("QDQ", "QOperator"),
    "calibrator": tuple(CALIBRATORS),
    "per_channel": (False, True),
    "reduce_range": (False, True),
    "activation_type": tuple(TYPES),
    "weight_type": ("int8", "uint8"),
    "symmetric": (False, True),
}
_STRETCHED = {"dispersed_range", "flushed_to_zero"}
_COARSE_TENSORS = {"outlier_channels", "dispersed_range", "flushed_to_zero", "unbalanced_inputs"}
_FOLDS = {"BatchNormalization", "Identity", "Dropout"}
_QUANTIZED = {"QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QGemm"}
_LEAST_OPSET = 13


class OnnxRuntimeQuantizer:
    """`quantize_static` or `quantize_dynamic` with these settings, and pre-processing before it."""

    def __init__(
        self,
        *,
        approach: Literal["static", "dynamic"] = "static",
        format: Literal["QDQ", "QOperator"] = "QDQ",  # noqa: A002  the tool's own word
        calibrator: Literal["minmax", "entropy", "percentile"] = "minmax",
        per_channel: bool = False,
        reduce_range: bool = False,
        activation_type: str | None = None,
        weight_type: str = "int8",
        symmetric: bool = False,
        preprocess: bool = True,
        op_types: Sequence[str] = (),
        rewrites: Sequence[Mapping[str, Any]] = (),
        ranges: Mapping[str, Range] | None = None,
    ) -> None:
        """Without an `activation_type` a tuning takes the one that this machine's kernels are faster with.

        Only ops of these `op_types` are quantized, or all that the tool can. `rewrites` are inc_tb.Rewrite as plain
        data, done before anything is quantized. Tensors that have (low, high) in `ranges` are not asked for theirs.
        """
        self._has_type = activation_type is not None
        activation_type = activation_type or "uint8"
        self.settings: dict[str, Any] = {
            "approach": approach, "format": format, "calibrator": calibrator, "per_channel": per_channel,
            "reduce_range": reduce_range, "activation_type": activation_type, "weight_type": weight_type,
            "symmetric": symmetric, "preprocess": preprocess, "int16_tensors": [], "op_types": list(op_types),
            "rewrites": list(rewrites), "ranges": dict(ranges or {}),
        }  # fmt: skip
        check_choices(self.settings, _CHOICES)
        if approach == "static" and weight_type == "uint8" and activation_type != "uint8":
            raise UsageError(f"weight_type='uint8' needs activation_type='uint8'; {activation_type!r} was given.")
        if format == "QOperator" and activation_type in ("int16", "uint16"):
            raise UsageError(f"activation_type={activation_type!r} needs format='QDQ'; 'QOperator' was given.")
        if ranges and self.with_ranges(self.settings, ranges) is None:
            raise UsageError(
                "ranges of single tensors need approach='static', format='QDQ' and symmetric=False; "
                f"{approach!r}, {format!r} and {symmetric} were given."
            )
        self._types: list[str] = []
        self._folder = TemporaryFolder("ranges")
        self._ranges = Path(self._folder.name)

    def prepare(self, model: Any, folder: Path) -> Path:
        """Shapes inferred, batch norms folded, every op named. Models without anything to fold keep all their ops."""
        for found in self._ranges.iterdir():  # of another model, or other data
            found.unlink()
        target = folder / "prepared.onnx"
        folder.mkdir(parents=True, exist_ok=True)
        source: Any = Path(model) if isinstance(model, str | PathLike) else model
        if not isinstance(source, Path | onnx.ModelProto):
            raise ModelError(f"{describe(model)}: ONNX Runtime cannot quantize it; expected an ONNX model.")
        types = {node.op_type for node in _load(source).graph.node}
        if types & _QUANTIZED or any(name.startswith("QLinear") for name in types):
            raise ModelError(f"{describe(model)}: is quantized already; expected the fp32 model.")
        has_folds = bool(types & _FOLDS)
        if self.settings["preprocess"] and not self._pre_processed(source, target, has_folds):
            self._pre_processed(source, target, has_folds, skip_symbolic_shape=True)
        proto = _raised(onnx.load(target) if target.exists() else whole(source))
        name_nodes(proto)
        self._types = sorted({node.op_type for node in proto.graph.node} & _known_types())
        onnx.save(proto, target)
        return target

    def _pre_processed(self, source: Any, target: Path, has_folds: bool, **options: Any) -> bool:
        """Whether it worked; its symbolic shape inference fails on some models that are fine otherwise."""
        left_over = Path("sym_shape_infer_temp.onnx")  # which it leaves in the working directory when it fails
        was_there = left_over.exists()
        try:
            with _quiet():
                quant_pre_process(source, target, skip_optimization=not has_folds, **options)
        except Exception:  # noqa: BLE001  the model is then quantized as it is
            target.unlink(missing_ok=True)
            if not was_there and left_over.exists():
                _remove(left_over)
        return target.exists()

    def quantize(
        self, model: Path, target: Path, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> None:
        try:
            with _quiet(), TemporaryFolder() as folder:
                rewritten = _rewritten(model, settings["rewrites"], Path(folder))
                if settings["approach"] == "dynamic":
                    _dynamic(rewritten, target, settings, keep)
                else:
                    ranges = self.ranges_path(settings["calibrator"], settings["rewrites"])
                    _static(rewritten, target, calibration, settings, keep, ranges)
        except IncTbError:
            raise  # the user's data, not the tool
        except Exception as error:  # onnxruntime raises many unrelated classes
            raise ModelError(f"{model}: ONNX Runtime cannot quantize it so: {first_line(error)}") from error

    def ranges_path(self, calibrator: str, rewrites: Sequence[Mapping[str, Any]] = ()) -> Path:
        """Where the ranges are kept that a calibrator has found."""
        told = hashlib.sha256(msgspec.json.encode(rewrites)).hexdigest()[:16] if rewrites else "as-it-is"
        return self._ranges / f"{calibrator}-{told}.json"

    def recipe(self, settings: Mapping[str, Any], keep: Sequence[str]) -> str:
        is_dynamic = settings["approach"] == "dynamic"
        types = settings["activation_type"], settings["weight_type"]
        return write(nodes_to_exclude(Settings(settings["per_channel"], *types, is_dynamic, settings)), keep)

    def variants(self) -> Sequence[Mapping[str, Any]]:
        base = self.settings
        changes: list[dict[str, Any]] = [{"per_channel": not base["per_channel"]}, {"symmetric": not base["symmetric"]}]
        if base["approach"] == "static":
            others = [name for name in ("minmax", "percentile", "entropy") if name != base["calibrator"]]
            changes += [{"calibrator": name} for name in others]
        else:
            changes = [{"per_channel": not base["per_channel"]}]
        return [{**base, **change} for change in changes]

    def kernels(self) -> Sequence[Mapping[str, Any]]:
        """With the other sign for activations, unless its user has chosen one: kernels are made for one of them."""
        settings = self.settings
        is_free = not self._has_type and (settings["approach"], settings["weight_type"]) == ("static", "int8")
        return [{**settings, "activation_type": "int8"}] if is_free else []

    def without_types(self, settings: Mapping[str, Any], types: Collection[str]) -> Mapping[str, Any]:
        """So that no op of these types is quantized."""
        return {**settings, "op_types": [t for t in settings["op_types"] or self._types if t not in types]}

    def with_ranges(self, settings: Mapping[str, Any], ranges: Mapping[str, Range]) -> Mapping[str, Any] | None:
        is_told = (settings["approach"], settings["format"], settings["symmetric"]) == ("static", "QDQ", False)
        more = {name: list(ends) for name, ends in ranges.items()}
        return {**settings, "ranges": {**settings["ranges"], **more}} if is_told else None

    def cures(
        self, settings: Mapping[str, Any], suggestions: Sequence[Suggestion], tensors: Mapping[str, str]
    ) -> Mapping[str, Mapping[str, Any]]:
        rules = {s.rule for s in suggestions}
        found: dict[str, Mapping[str, Any]] = {}
        if not settings["per_channel"]:  # costs nothing, so it needs no rule
            found["a scale for each channel of the weights"] = {**settings, "per_channel": True}
        if settings["approach"] == "dynamic":
            return found
        if "clipped_range" in rules and settings["calibrator"] != "minmax":
            found["calibration by minimum and maximum"] = {**settings, "calibrator": "minmax"}
        if rules & _STRETCHED and settings["calibrator"] == "minmax":
            found["calibration by percentiles"] = {**settings, "calibrator": "percentile"}
        coarse = [op for s in suggestions if s.rule in _COARSE_TENSORS for op in s.ops]
        if coarse and settings["format"] == "QDQ":
            long = list(dict.fromkeys(tensors[op] for op in coarse if op in tensors))
            found["16 bits for the activations that suffer"] = {**settings, "int16_tensors": long}
        return found


def quantize_to_ranges(model: Any, ranges: Mapping[str, tuple[float, float]], **settings: Any) -> onnx.ModelProto:
    """The model as ONNX Runtime quantizes it to these ranges of its tensors, without any data."""
    try:
        from onnxruntime.quantization import save_tensors_data
        from onnxruntime.quantization.calibrate import TensorsData
    except ImportError as error:
        raise ModelError(
            "this onnxruntime cannot quantize to given ranges; expected 1.31 or later. Update it, or give the "
            "quantized model instead."
        ) from error
    tool = OnnxRuntimeQuantizer(**settings)
    found = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.items()}
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, found), tool.ranges_path("minmax"))
    with TemporaryFolder() as folder:
        source, target = Path(folder, "fp32.onnx"), Path(folder, "int8.onnx")
        onnx.save(whole(Path(model) if isinstance(model, str | PathLike) else model), source)
        try:
            with _quiet():
                _static(source, target, [], tool.settings, [], tool.ranges_path("minmax"))
        except Exception as error:  # onnxruntime raises many unrelated classes
            raise ModelError(
                f"the {len(ranges)} given ranges are not enough ({first_line(error)}). Give (low, high) for what every "
                "op reads and writes."
            ) from error
        return onnx.load(target)


def _rewritten(model: Path, rewrites: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    if not rewrites:
        return model
    target = folder / "rewritten.onnx"
    onnx.save(apply_rewrites(model, msgspec.convert(rewrites, list[Rewrite])), target)
    return target


def _dynamic(model: Path, target: Path, settings: Mapping[str, Any], keep: Sequence[str]) -> None:
    renamed = [f"{name}_MatMul" for name in keep]  # it makes a MatMul and an Add of each Gemm before it looks for names
    quantize_dynamic(
        model, target, per_channel=settings["per_channel"], reduce_range=settings["reduce_range"],
        weight_type=_type(settings["weight_type"]), nodes_to_exclude=[*keep, *renamed],
        op_types_to_quantize=list(settings["op_types"]) or None,
    )  # fmt: skip


def _remove(left_over: Path) -> None:
    """With its weights, which lie beside it under a name of their own."""
    with contextlib.suppress(DecodeError):
        weights = onnx.load(left_over, load_external_data=False).graph.initializer
        for place in {e.value for tensor in weights for e in tensor.external_data if e.key == "location"}:
            Path(place).unlink(missing_ok=True)
    left_over.unlink()


def _static(
    model: Path,
    target: Path,
    calibration: Iterable[Batch],
    settings: Mapping[str, Any],
    keep: Sequence[str],
    ranges: Path,
) -> None:
    """Ranges do not depend on what is kept in fp32, so they are found once for all trials, and kept in this file."""
    options: dict[str, Any] = {"ActivationSymmetric": settings["symmetric"]}
    if overrides := _overrides(settings):
        options["TensorQuantOverrides"] = overrides
    batches = calibration if settings["calibrator"] == "minmax" else _even(list(calibration))
    has_cache = "calibration_cache_path" in inspect.signature(quantize_static).parameters
    quantize_static(
        model, target, _Reader(batches), quant_format=QuantFormat[settings["format"]],
        per_channel=settings["per_channel"], reduce_range=settings["reduce_range"],
        activation_type=_type(settings["activation_type"]), weight_type=_type(settings["weight_type"]),
        calibrate_method=CalibrationMethod[CALIBRATORS[settings["calibrator"]]], nodes_to_exclude=list(keep),
        op_types_to_quantize=list(settings["op_types"]) or None,
        extra_options=options, **({"calibration_cache_path": ranges} if has_cache else {}),
    )  # fmt: skip


def _overrides(settings: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What single tensors have of their own; 16 bits have room for the whole range."""
    ranged: dict[str, Any] = {
        name: [{"rmin": np.float32(low), "rmax": np.float32(high)}] for name, (low, high) in settings["ranges"].items()
    }
    long = {"quant_type": QuantType[long_type(settings["activation_type"])]}
    return {**ranged, **{name: [long] for name in settings["int16_tensors"]}}


def _known_types() -> set[str]:
    """What the tool quantizes unless told otherwise."""
    return {*QDQRegistry, *QLinearOpsRegistry}


def _type(dtype: str) -> QuantType:
    return QuantType[TYPES[dtype]]


def _even(batches: Sequence[Batch]) -> Iterator[Batch]:
    """Batches of one size, because the calibrators with histograms stack them."""
    size = math.gcd(*(len(next(iter(batch.values()))) for batch in batches))
    for batch in batches:
        length = len(next(iter(batch.values())))
        for start in range(0, length, size):
            yield {name: array[start : start + size] for name, array in batch.items()}


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> Batch | None:
        return next(self._batches, None)


def _load(source: Any) -> onnx.ModelProto:
    """Perhaps without its weights, which may be in another file."""
    return onnx.load(source, load_external_data=False) if isinstance(source, Path) else source


def _raised(proto: onnx.ModelProto) -> onnx.ModelProto:
    """In an opset that has scales per channel, where the model can be converted to it."""
    version = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), _LEAST_OPSET)
    if version >= _LEAST_OPSET:
        return proto
    try:
        raised = version_converter.convert_version(proto, _LEAST_OPSET)
        onnx.checker.check_model(raised)
    except Exception:  # noqa: BLE001  onnx raises many unrelated classes; the model is then quantized as it is
        return proto
    return raised


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Advice of onnxruntime about pre-processing and its own deprecated calls are not news to the user."""
    before = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.setLevel(before)
