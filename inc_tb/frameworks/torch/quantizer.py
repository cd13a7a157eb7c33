"""PyTorch's own quantization tools behind the Quantizer protocol."""

from __future__ import annotations

import contextlib
import copy
import operator
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.ao import quantization as ao

from inc_tb.errors import IncTbError, ModelError
from inc_tb.frameworks.choices import Choices, check_choices
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.templates import quoted, write
from inc_tb.frameworks.torch.arguments import call, feeds, input_names
from inc_tb.frameworks.torch.formats import OBSERVERS, RECURRENT, pt2e, qconfig_mapping, quantize_dynamic
from inc_tb.frameworks.torch.grids import is_fake_quantizer
from inc_tb.frameworks.torch.kinds import function_kind, is_follower, is_passing, is_passing_module, module_kind
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.steps import Names
from inc_tb.records import Suggestion

_CHOICES: Choices = {
    "approach": ("auto", "dynamic", "static", "pt2e", "pt2e-dynamic"),
    "calibrator": tuple(OBSERVERS),
    "per_channel": (True, False),
    "reduce_range": (True, False),
}
_PT2E = ("pt2e", "pt2e-dynamic")
_TEXTS = {"dynamic": quantize_dynamic, "static": qconfig_mapping, "pt2e": pt2e, "pt2e-dynamic": pt2e}
_DYNAMIC = (nn.Linear, *(getattr(nn, name) for name in RECURRENT))
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)


class TorchQuantizer:
    """Dynamic (`quantize_dynamic`), static (FX graph mode) or PT2E (torchao), with these settings.

    `auto` is static for a model with convolutions and dynamic for others, as is usual for transformers. The best model
    is an object; what is stored beside it is its state_dict.
    """

    def __init__(
        self,
        *,
        approach: Literal["auto", "dynamic", "static", "pt2e", "pt2e-dynamic"] = "auto",
        calibrator: Literal["histogram", "minmax"] = "histogram",
        per_channel: bool = True,
        reduce_range: bool = True,
    ) -> None:
        self.settings: dict[str, Any] = {
            "approach": approach, "calibrator": calibrator, "per_channel": per_channel, "reduce_range": reduce_range,
        }  # fmt: skip
        check_choices(self.settings, _CHOICES)
        self._calls: dict[str, _FxCall] = {}

    def prepare(self, model: Any, folder: Path) -> nn.Module:
        """A copy, ready to run."""
        module = opened(model)
        if any(_is_quantized(m) for m in module.modules()) or _rounds_in_graph(module):
            raise ModelError(f"{describe(model)}: is quantized already; expected the fp32 model.")
        if self.settings["approach"] == "auto":
            has_convolutions = any(isinstance(m, _CONVOLUTIONS) for m in module.modules())
            self.settings["approach"] = "static" if has_convolutions else "dynamic"
        self._calls = _fx_calls(module) if self.settings["approach"] == "static" else {}
        return copy.deepcopy(module).eval()

    def quantize(
        self,
        model: nn.Module,
        target: Path,
        calibration: Iterable[Batch],
        settings: Mapping[str, Any],
        keep: Sequence[str],
    ) -> nn.Module:
        ways = {"dynamic": _dynamic, "static": _static, "pt2e": _pt2e, "pt2e-dynamic": _pt2e}
        try:
            with _quiet(), torch.no_grad():
                return ways[settings["approach"]](model, calibration, settings, keep)
        except IncTbError:
            raise
        except ModuleNotFoundError as error:
            raise ModelError(f"approach={settings['approach']!r} needs {error.name}: pip install torchao.") from error
        except Exception as error:  # torch raises many unrelated classes
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelError(f"{describe(model)}: PyTorch cannot quantize it so: {lines[0]}") from error

    def recipe(self, settings: Mapping[str, Any], keep: Sequence[str]) -> str:
        functions, names = _functions_and_modules(keep, self._calls)
        kept = [name for name in names if _module(name)]
        told = {
            **settings,
            "functions": [f"{quoted(f.module)}, {_qualified(f.function)}, {f.order}" for f in functions],
            "whole_model": len(kept) < len(names),
        }
        is_dynamic = settings["approach"] in ("dynamic", "pt2e-dynamic")
        known = Settings(settings["per_channel"], "uint8", "int8", is_dynamic, told)
        return write(_TEXTS[settings["approach"]](known), kept)

    def variants(self) -> Sequence[Mapping[str, Any]]:
        base = self.settings
        changes: list[dict[str, Any]] = [{"per_channel": not base["per_channel"]}]
        if base["approach"] == "static":
            changes += [
                {"calibrator": "minmax" if base["calibrator"] == "histogram" else "histogram"},
                {"reduce_range": not base["reduce_range"]},
            ]
        if base["approach"] in _PT2E:
            changes = [{"reduce_range": not base["reduce_range"]}]
        return [{**base, **change} for change in changes]

    def cures(
        self, settings: Mapping[str, Any], suggestions: Sequence[Suggestion], tensors: Mapping[str, str]
    ) -> Mapping[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        if not settings["per_channel"] and settings["approach"] not in _PT2E:
            found["a scale for each channel of the weights"] = {**settings, "per_channel": True}
        is_clipped = any(s.rule == "clipped_range" for s in suggestions)
        if settings["approach"] == "static" and settings["calibrator"] == "histogram" and is_clipped:
            found["calibration by minimum and maximum"] = {**settings, "calibrator": "minmax"}
        return found


def _is_quantized(module: nn.Module) -> bool:
    home = type(module).__module__
    is_integer = home.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized"))
    return is_integer or is_fake_quantizer(module)


def _rounds_in_graph(module: nn.Module) -> bool:
    is_graph = isinstance(module, fx.GraphModule)
    return is_graph and any("quantize_per" in str(node.target) for node in module.graph.nodes)


def _dynamic(
    model: nn.Module, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
) -> nn.Module:
    kept = {_module(name) for name in keep}
    qconfig = ao.per_channel_dynamic_qconfig if settings["per_channel"] else ao.default_dynamic_qconfig
    plain = ao.default_dynamic_qconfig  # recurrent layers know no other
    chosen = {
        name: qconfig if isinstance(module, nn.Linear) else plain
        for name, module in model.named_modules()
        if type(module) in _DYNAMIC and name not in kept and name
    }
    made = copy.deepcopy(model)
    return ao.quantize_dynamic(made, chosen, inplace=True) if chosen else made


def _static(
    model: nn.Module, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
) -> nn.Module:
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    observer = getattr(ao, OBSERVERS[settings["calibrator"]])
    weights = ao.default_per_channel_weight_observer if settings["per_channel"] else ao.default_weight_observer
    qconfig = ao.QConfig(observer.with_args(reduce_range=settings["reduce_range"]), weights)
    mapping = ao.get_default_qconfig_mapping()
    usual = mapping.global_qconfig
    for kind, own in list(mapping.object_type_qconfigs.items()):
        if own == usual:  # others have a fixed grid, such as softmax, or know no scales per channel
            mapping.set_object_type(kind, qconfig)
    mapping.set_global(qconfig)
    functions, names = _functions_and_modules(keep, _fx_calls(model))
    for function in functions:
        mapping.set_module_name_object_type_order(*function, None)
    for name in names:
        mapping.set_module_name(_module(name), None)
    batches = list(calibration)
    example = tuple(_positional(model, feeds(model, batches[0])))
    prepared = prepare_fx(copy.deepcopy(model), mapping, example)
    for batch in batches:
        prepared(*_positional(model, feeds(model, batch)))
    return convert_fx(prepared)


def _pt2e(
    model: nn.Module, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
) -> nn.Module:
    from torchao.quantization.pt2e import quantize_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    is_dynamic = settings["approach"] == "pt2e-dynamic"
    config = x86.get_default_x86_inductor_quantization_config(
        is_dynamic=is_dynamic, reduce_range=settings["reduce_range"]
    )
    quantizer = x86.X86InductorQuantizer().set_global(config)
    for name in keep:
        quantizer.set_module_name_qconfig(_module(name), None)
    batches = list(calibration)
    prepared = quantize_pt2e.prepare_pt2e(exported(model, batches[0]), quantizer)
    for batch in batches:
        call(prepared, feeds(model, batch))
    return quantize_pt2e.convert_pt2e(prepared)


def exported(model: nn.Module, batch: Batch) -> nn.Module:
    """With any number of samples where the model allows that; from two of them, since one is taken for fixed."""
    twice = {name: np.concatenate([array, array]) if array.ndim else array for name, array in batch.items()}
    given = feeds(model, twice if all(len(a) == 1 for a in batch.values() if a.ndim) else batch)
    arguments = tuple(_positional(model, given))
    shapes = tuple({0: torch.export.Dim.AUTO} if isinstance(a, Tensor) and a.ndim else None for a in arguments)
    return torch.export.export(model, arguments, dynamic_shapes=shapes, strict=False).module()


def _positional(model: nn.Module, given: Mapping[str, Tensor]) -> list[Tensor | None]:
    """In the order in which the model takes them."""
    names = input_names(model)
    if names is None or not set(given) <= set(names):
        return list(given.values())
    last = max(names.index(name) for name in given)
    return [given.get(name) for name in names[: last + 1]]


def _module(name: str) -> str:
    """The module that an op is, or is in: conv1 of conv1/2, block of block/add_1."""
    return name.partition("/")[0]


class _Function(NamedTuple):
    """A call of a function as FX tells it from others."""

    module: str
    function: Any
    order: int
    """How often it was called there before."""


class _FxCall(NamedTuple):
    """A call as FX sees it."""

    function: _Function | None
    """None for a module."""
    sources: frozenset[str]
    is_follower: bool


def _fx_calls(model: nn.Module) -> dict[str, _FxCall]:
    """By the names of ops."""
    try:
        traced = fx.symbolic_trace(model)
    except Exception:  # noqa: BLE001  the quantization itself will say why
        return {}
    names, found, counts = Names(), dict[str, _FxCall](), Counter[tuple[str, Any]]()
    made_by: dict[fx.Node, frozenset[str]] = {}
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        sources = frozenset(name for argument in node.all_input_nodes for name in made_by.get(argument, ()))
        made_by[node] = sources
        if node.op == "call_module" and not is_passing_module(modules[str(node.target)]):
            name, function, kind = names.of_module(str(node.target)), None, module_kind(modules[str(node.target)])
        elif node.op in ("call_function", "call_method") and not is_passing(function_kind(node.target).name):
            kind = function_kind(node.target).name
            path = next((entry[0] for entry in reversed((node.meta.get("nn_module_stack") or {}).values())), "")
            name, function = names.of_function(path, kind), _Function(path, node.target, counts[path, node.target])
            counts[path, node.target] += 1
        else:
            continue
        made_by[node] = frozenset([name])
        found[name] = _FxCall(function, sources, is_follower(kind) or "BatchNorm" in kind)
    return found


def _with_followers(keep: Sequence[str], calls: Mapping[str, _FxCall]) -> list[str]:
    """Also what only follows kept ops, such as the activation behind them: FX would round what it makes."""
    kept = dict.fromkeys(keep)
    for name, call_ in calls.items():
        if call_.is_follower and call_.sources and call_.sources <= set(kept):
            kept[name] = None
    return list(kept)


def _functions_and_modules(keep: Sequence[str], calls: Mapping[str, _FxCall]) -> tuple[list[_Function], list[str]]:
    """What FX is told to keep in fp32: functions by their place, and the names of ops that are modules, or in one."""
    names = _with_followers(keep, calls)
    functions = {name: calls[name].function for name in names if name in calls}
    return [f for f in functions.values() if f is not None], [name for name in names if functions.get(name) is None]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """That these tools will move to torchao one day is not news to the user of a tuning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _qualified(function: Any) -> str:
    if isinstance(function, str):  # a method
        return quoted(function)
    name = str(getattr(function, "__name__", function))
    if getattr(operator, name, None) is function:
        return f"operator.{name}"
    return f"torch.nn.functional.{name}" if getattr(nn.functional, name, None) is function else f"torch.{name}"
