"""PyTorch's own quantization tools behind the Quantizer protocol."""

from __future__ import annotations

import contextlib
import copy
import json
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

from inc_tb.adapters.torch.adapter import feeds, opened
from inc_tb.adapters.torch.kinds import function_kind, is_follower, is_passing, is_passing_module, module_kind
from inc_tb.adapters.torch.trace import Names, call, input_names
from inc_tb.adapters.torch.values import is_fake_quantizer
from inc_tb.capture import Batch, describe
from inc_tb.errors import IncTbError, ModelError, UsageError
from inc_tb.records import Suggestion

_CHOICES: Mapping[str, Sequence[Any]] = {
    "approach": ("auto", "dynamic", "static", "pt2e", "pt2e-dynamic"),
    "calibrator": ("histogram", "minmax"),
    "per_channel": (True, False),
    "reduce_range": (True, False),
}
_DYNAMIC = (nn.Linear, nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, nn.RNNCell)
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
        for name, choices in _CHOICES.items():
            if self.settings[name] not in choices:
                raise UsageError(f"{name}={self.settings[name]!r} was given; expected one of {list(choices)}.")

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
        if settings["approach"] == "static":
            return _static_recipe(settings, keep, self._calls)
        return (_dynamic_recipe if settings["approach"] == "dynamic" else _pt2e_recipe)(settings, keep)

    def variants(self) -> Sequence[Mapping[str, Any]]:
        base = self.settings
        changes: list[dict[str, Any]] = [{"per_channel": not base["per_channel"]}]
        if base["approach"] == "static":
            changes += [
                {"calibrator": "minmax" if base["calibrator"] == "histogram" else "histogram"},
                {"reduce_range": not base["reduce_range"]},
            ]
        if base["approach"].startswith("pt2e"):
            changes = [{"reduce_range": not base["reduce_range"]}]
        return [{**base, **change} for change in changes]

    def cures(
        self, settings: Mapping[str, Any], suggestions: Sequence[Suggestion], tensors: Mapping[str, str]
    ) -> Mapping[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        if not settings["per_channel"] and not settings["approach"].startswith("pt2e"):
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

    observer = ao.HistogramObserver if settings["calibrator"] == "histogram" else ao.MinMaxObserver
    weights = ao.default_per_channel_weight_observer if settings["per_channel"] else ao.default_weight_observer
    qconfig = ao.QConfig(observer.with_args(reduce_range=settings["reduce_range"]), weights)
    mapping = ao.get_default_qconfig_mapping()
    usual = mapping.global_qconfig
    for kind, own in list(mapping.object_type_qconfigs.items()):
        if own == usual:  # others have a fixed grid, such as softmax, or know no scales per channel
            mapping.set_object_type(kind, qconfig)
    mapping.set_global(qconfig)
    calls = _fx_calls(model)
    for name in _with_followers(keep, calls):
        function = calls[name].function if name in calls else None
        if function is not None:
            mapping.set_module_name_object_type_order(*function, None)
        else:
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


class _FxCall(NamedTuple):
    """A call as FX sees it."""

    function: tuple[str, Any, int] | None
    """Module, function, and how often it was called there before; None for a module."""
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
            name, function = names.of_function(path, kind), (path, node.target, counts[path, node.target])
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """That these tools will move to torchao one day is not news to the user of a tuning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _dynamic_recipe(settings: Mapping[str, Any], keep: Sequence[str]) -> str:
    qconfig = "per_channel_dynamic_qconfig" if settings["per_channel"] else "default_dynamic_qconfig"
    kept = json.dumps([_module(name) for name in keep])
    others = ", ".join(f"nn.{kind.__name__}" for kind in _DYNAMIC if kind is not nn.Linear)
    return (
        "from torch import nn\nfrom torch.ao import quantization\n\n"
        f"keep = {kept}\nqconfigs = dict.fromkeys([{others}], quantization.default_dynamic_qconfig)\n"
        f"qconfigs[nn.Linear] = quantization.{qconfig}\n"
        "chosen = {\n    name: qconfigs[type(module)]\n    for name, module in model.named_modules()\n"
        "    if type(module) in qconfigs and name not in keep\n}\n"
        "quantized = quantization.quantize_dynamic(model, chosen)"
    )


def _static_recipe(settings: Mapping[str, Any], keep: Sequence[str], calls: Mapping[str, _FxCall]) -> str:
    observer = "HistogramObserver" if settings["calibrator"] == "histogram" else "MinMaxObserver"
    weights = "default_per_channel_weight_observer" if settings["per_channel"] else "default_weight_observer"
    lines = []
    for name in _with_followers(keep, calls):
        told = calls[name].function if name in calls else None
        if told is not None:
            path, function, order = told
            what = f"{json.dumps(path)}, {_qualified(function)}, {order}"
            lines.append(f"qconfig_mapping.set_module_name_object_type_order({what}, None)\n")
        else:
            lines.append(f"qconfig_mapping.set_module_name({json.dumps(_module(name))}, None)\n")
    return (
        "import operator\n\nimport torch\n"
        f"from torch.ao.quantization import QConfig, {observer}, {weights}, get_default_qconfig_mapping\n"
        "from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx\n\n"
        f"qconfig = QConfig({observer}.with_args(reduce_range={settings['reduce_range']}), {weights})\n"
        "qconfig_mapping = get_default_qconfig_mapping()\n"
        "usual = qconfig_mapping.global_qconfig\n"
        "for kind, own in list(qconfig_mapping.object_type_qconfigs.items()):\n"
        "    if own == usual:\n        qconfig_mapping.set_object_type(kind, qconfig)\n"
        f"qconfig_mapping.set_global(qconfig)\n{''.join(lines)}"
        "prepared = prepare_fx(model, qconfig_mapping, example_inputs)\n"
        "for batch in calibration_batches:\n    prepared(*batch)\n"
        "quantized = convert_fx(prepared)"
    )


def _qualified(function: Any) -> str:
    if isinstance(function, str):  # a method
        return json.dumps(function)
    name = str(getattr(function, "__name__", function))
    if getattr(operator, name, None) is function:
        return f"operator.{name}"
    return f"torch.nn.functional.{name}" if getattr(nn.functional, name, None) is function else f"torch.{name}"


def _pt2e_recipe(settings: Mapping[str, Any], keep: Sequence[str]) -> str:
    lines = "".join(f"    .set_module_name_qconfig({json.dumps(_module(name))}, None)\n" for name in keep)
    arguments = f"is_dynamic={settings['approach'] == 'pt2e-dynamic'}, reduce_range={settings['reduce_range']}"
    return (
        "import torch\nfrom torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e\n"
        "from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86\n\n"
        "quantizer = (\n    x86.X86InductorQuantizer()\n"
        f"    .set_global(x86.get_default_x86_inductor_quantization_config({arguments}))\n{lines})\n"
        "any_size = tuple({0: torch.export.Dim.AUTO} for _ in example_inputs)  # of more than one sample\n"
        "exported = torch.export.export(model, example_inputs, dynamic_shapes=any_size, strict=False)\n"
        "prepared = prepare_pt2e(exported.module(), quantizer)\n"
        "for batch in calibration_batches:\n    prepared(*batch)\n"
        "quantized = convert_pt2e(prepared)"
    )
