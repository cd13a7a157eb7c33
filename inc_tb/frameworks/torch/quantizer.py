"""PyTorch's own quantization tools behind the Quantizer protocol."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.ao import quantization as ao

from inc_tb.errors import IncTbError, ModelError, first_line
from inc_tb.frameworks.choices import Choices, check_choices
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.registry import describe
from inc_tb.frameworks.templates import write
from inc_tb.frameworks.torch import torchao
from inc_tb.frameworks.torch.arguments import call, feeds, input_names
from inc_tb.frameworks.torch.followers import with_followers
from inc_tb.frameworks.torch.formats import OBSERVERS, RECURRENT, pt2e, qconfig_mapping, quantize_, quantize_dynamic
from inc_tb.frameworks.torch.fx_calls import FxCall, fx_calls, statements
from inc_tb.frameworks.torch.grids import is_fake_quantizer
from inc_tb.frameworks.torch.opening import opened
from inc_tb.frameworks.torch.rewrites import apply_rewrites
from inc_tb.records import Rewrite, Suggestion

_CHOICES: Choices = {
    "approach": ("auto", "dynamic", "static", "pt2e", "pt2e-dynamic", *torchao.CONFIGS),
    "calibrator": tuple(OBSERVERS),
    "per_channel": (True, False),
    "reduce_range": (True, False),
}
_PT2E = ("pt2e", "pt2e-dynamic")
_TEXTS = {
    "dynamic": quantize_dynamic, "static": qconfig_mapping, "pt2e": pt2e, "pt2e-dynamic": pt2e, "torchao": quantize_,
    "torchao-dynamic": quantize_,
}  # fmt: skip
_DYNAMIC = (nn.Linear, *(getattr(nn, name) for name in RECURRENT))
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d)


class TorchQuantizer:
    """Dynamic (`quantize_dynamic`), static (FX graph mode), PT2E or `quantize_` (both torchao), with these settings.

    `auto` is static for a model with convolutions and dynamic for others, as is usual for transformers. The best model
    is an object; what is stored beside it is its state_dict.
    """

    def __init__(
        self,
        *,
        approach: Literal["auto", "dynamic", "static", "pt2e", "pt2e-dynamic", "torchao", "torchao-dynamic"] = "auto",
        calibrator: Literal["histogram", "minmax"] = "histogram",
        per_channel: bool = True,
        reduce_range: bool = True,
        rewrites: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`rewrites` are those of `inc_tb.find_rewrites` as plain data, done before anything is quantized."""
        self.settings: dict[str, Any] = {
            "approach": approach, "calibrator": calibrator, "per_channel": per_channel, "reduce_range": reduce_range,
            "rewrites": list(rewrites),
        }  # fmt: skip
        check_choices(self.settings, _CHOICES)
        self._calls: dict[str, FxCall] = {}

    def prepare(self, model: Any, folder: Path) -> nn.Module:
        """A copy, ready to run."""
        module = opened(model)
        is_done = any(map(is_quantized, module.modules())) or torchao.has_tensors(module)
        if is_done or _rounds_in_graph(module):
            raise ModelError(f"{describe(model)}: is quantized already; expected the fp32 model.")
        if self.settings["approach"] == "auto":
            has_convolutions = any(isinstance(m, _CONVOLUTIONS) for m in module.modules())
            self.settings["approach"] = "static" if has_convolutions else "dynamic"
        self._calls = fx_calls(module) if self.settings["approach"] == "static" else {}
        return copy.deepcopy(module).eval()

    def quantize(
        self,
        model: nn.Module,
        target: Path,
        calibration: Iterable[Batch],
        settings: Mapping[str, Any],
        keep: Sequence[str],
    ) -> nn.Module:
        return self._made(model, calibration, settings, keep, calibrates=True)

    def outline(self, model: nn.Module, example: Batch, settings: Mapping[str, Any], keep: Sequence[str]) -> nn.Module:
        """The model as `quantize` makes it, with any scales: what is filled with those of one that was saved."""
        told = [{**rewrite, "digest": ""} for rewrite in settings["rewrites"]]  # its weights come later
        return self._made(model, [example], {**settings, "rewrites": told}, keep, calibrates=False)

    def _made(
        self, model: nn.Module, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str], *,
        calibrates: bool,
    ) -> nn.Module:  # fmt: skip
        ways = {"dynamic": _dynamic, "static": _static, "pt2e": _pt2e, "pt2e-dynamic": _pt2e}
        way = ways.get(settings["approach"], _torchao)
        try:
            rewrites = msgspec.convert(settings["rewrites"], list[Rewrite])
            rewritten = apply_rewrites(model, rewrites) if rewrites else model
            with _quiet(), torch.no_grad():
                return way(rewritten, calibration, settings, keep, calibrates)
        except IncTbError:
            raise
        except ModuleNotFoundError as error:
            raise ModelError(f"approach={settings['approach']!r} needs {error.name}: pip install torchao.") from error
        except Exception as error:  # torch raises many unrelated classes
            raise ModelError(f"{describe(model)}: PyTorch cannot quantize it so: {first_line(error)}") from error

    def recipe(self, settings: Mapping[str, Any], keep: Sequence[str]) -> str:
        kept = [name for name in keep if _module(name)]
        told = {**settings, "whole_model": len(kept) < len(keep)}
        told_as: dict[str, str] = {}
        if settings["approach"] == "static":
            followed = with_followers(keep, self._calls)
            kept = [name for name in followed if name not in self._calls or not self._calls[name].is_passing]
            told_as = statements(self._calls)
        is_dynamic = settings["approach"] in ("dynamic", "pt2e-dynamic", "torchao-dynamic")
        known = Settings(settings["per_channel"], "uint8", "int8", is_dynamic, told)
        return write(_TEXTS[settings["approach"]](known), kept, statements=told_as)

    def variants(self) -> Sequence[Mapping[str, Any]]:
        base = self.settings
        changes: list[dict[str, Any]] = [{"per_channel": not base["per_channel"]}]
        if base["approach"] in torchao.CONFIGS:  # a scale for each channel, always
            changes = [{"approach": "torchao"}] if base["approach"] == "torchao-dynamic" else []
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
        if not settings["per_channel"] and settings["approach"] in ("dynamic", "static"):
            found["a scale for each channel of the weights"] = {**settings, "per_channel": True}
        is_clipped = any(s.rule == "clipped_range" for s in suggestions)
        if settings["approach"] == "static" and settings["calibrator"] == "histogram" and is_clipped:
            found["calibration by minimum and maximum"] = {**settings, "calibrator": "minmax"}
        return found


def is_quantized(module: nn.Module) -> bool:
    home = type(module).__module__
    is_integer = home.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized"))
    return is_integer or is_fake_quantizer(module)


def _rounds_in_graph(module: nn.Module) -> bool:
    is_graph = isinstance(module, fx.GraphModule)
    return is_graph and any("quantize_per" in str(node.target) for node in module.graph.nodes)


def _dynamic(
    model: nn.Module,
    calibration: Iterable[Batch],
    settings: Mapping[str, Any],
    keep: Sequence[str],
    calibrates: bool,
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
    model: nn.Module,
    calibration: Iterable[Batch],
    settings: Mapping[str, Any],
    keep: Sequence[str],
    calibrates: bool,
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
    calls = fx_calls(model)
    for name in with_followers(keep, calls):
        if name in calls:
            calls[name].tell(mapping)
        else:  # a module that is called by others
            mapping.set_module_name(_module(name), None)
    batches = list(calibration)
    example = tuple(_positional(model, feeds(model, batches[0])))
    prepared = prepare_fx(copy.deepcopy(model), mapping, example)
    for batch in batches if calibrates else ():
        prepared(*_positional(model, feeds(model, batch)))
    return convert_fx(prepared)


def _pt2e(
    model: nn.Module,
    calibration: Iterable[Batch],
    settings: Mapping[str, Any],
    keep: Sequence[str],
    calibrates: bool,
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
    if calibrates:
        for batch in batches:
            call(prepared, feeds(model, batch))
    else:  # FX observes weights when it converts, this tool when the model runs
        _Constants(prepared).run(enable_io_processing=False)
    return quantize_pt2e.convert_pt2e(prepared)


class _Constants(fx.Interpreter):  # type: ignore[misc]
    """Runs what depends on no input."""

    def run_node(self, node: fx.Node) -> Any:
        is_end = node.op in ("placeholder", "output")
        return None if is_end or any(self.env[n] is None for n in node.all_input_nodes) else super().run_node(node)


def _torchao(
    model: nn.Module,
    calibration: Iterable[Batch],
    settings: Mapping[str, Any],
    keep: Sequence[str],
    calibrates: bool,
) -> nn.Module:
    return torchao.quantized(model, settings, [_module(name) for name in keep])


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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """That these tools will move to torchao one day is not news to the user of a tuning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
