"""What a framework adapter gives: ops, and pairs of arrays."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from inc_tb.errors import ModelError, UsageError
from inc_tb.records import GraphNode, Op, Suggestion
from inc_tb.traces import Slice

Array = npt.NDArray[Any]
Batch = Mapping[str, Array]
_EXPECTED = (
    "ONNX models are .onnx files or onnx.ModelProto objects, PyTorch models torch.nn.Module objects, TensorFlow models "
    ".pb, .tflite and .keras files, SavedModel folders, or objects, MXNet models -symbol.json files or gluon blocks."
)
_PAIRS = "expected two ONNX models, two PyTorch models, two TensorFlow models, or two MXNet models"
_EXTRAS = {"onnx": "ONNX", "torch": "PyTorch", "tensorflow": "TensorFlow", "mxnet": "MXNet"}
_SUFFIXES = {
    ".onnx": "onnx", ".ort": "ort", ".pb": "tensorflow", ".tflite": "tensorflow", ".keras": "tensorflow",
    ".h5": "tensorflow", ".params": "mxnet",
}  # fmt: skip
_MXNET = "-symbol.json"
_CLEAR_REFS = Path("/proc/self/clear_refs")
_LEAST_RUNS, _MOST_RUNS, _LATENCY_S = 5, 50, 0.5
Role = Literal["weight", "input", "output", "isolated"]
"""input: a quantized input of the whole model, at the first op that reads it;
isolated: the op's output when it gets the reference's inputs, which shows what the op itself adds."""


class Pair(NamedTuple):
    """The same tensor in both models, the quantized one already dequantized."""

    op: str
    tensor: str
    role: Role
    reference: Array
    quantized: Array
    channel_axis: int | None


class Input(NamedTuple):
    """An input of the model; None in the shape is any length."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    is_known: bool = True
    """Otherwise it has nothing but its name: only data can tell the rest."""


class Adapter(Protocol):
    """One file per framework."""

    framework: str
    notes: list[str]
    """What was left out, and why; may grow while batches run."""

    def inputs(self) -> Sequence[Input]: ...

    def batch_size(self) -> int:
        """How many samples fit the memory budget at once."""
        ...

    def trace(self, batch: Batch) -> None:
        """Called with the first batch before anything below: some models only show what they do when they run."""
        ...

    def ops(self) -> Sequence[Op]: ...

    def weights(self) -> Iterator[Pair]: ...

    def run(self, batch: Batch) -> Iterator[Pair]: ...


class Unit(NamedTuple):
    """The smallest thing that can be kept in fp32: the op that a quantizer is told, and the ops that go with it."""

    name: str
    ops: list[str]


class Site(NamedTuple):
    """Something that quantization rounds: a tensor between ops, or the weights of one."""

    name: str
    kind: Literal["activation", "weight"]
    units: frozenset[str]
    """It is rounded as long as any of these is quantized."""
    grid: str
    """Sites with the same grid round the same values again, which changes nothing: a tensor and its reshaped form."""
    instead: str = ""
    """How it is rounded by the runtime where the quantizer has left it alone; "" where runtimes leave it alone, too."""
    ways: tuple[frozenset[str], ...] = ()
    """Keeping all units of one of these in fp32 spares it for good, where there is an `instead`."""

    def is_spared(self, kept: AbstractSet[str]) -> bool:
        return any(way <= kept for way in self.ways or (self.units,))


class Outputs(NamedTuple):
    scores: list[Array]
    """The results, before a softmax where the model ends with one."""
    results: list[Array]


class Switchable(Protocol):
    """A model whose quantization can be switched on and off site by site, without opening another session."""

    framework: str
    notes: list[str]
    inputs: Sequence[Input]
    units: Sequence[Unit]
    sites: Sequence[Site]

    def trace(self, batch: Batch) -> None:
        """As of Adapter: units and sites are known afterwards."""
        ...

    def run(self, batch: Batch, on: Collection[str]) -> Outputs:
        """With the sites of these names rounded and everything else in fp32."""
        ...

    def gradients(self, batch: Batch) -> Mapping[str, npt.NDArray[np.float64]]:
        """For each op and sample, an estimate of what its quantization does to the output, from one backward pass.

        Nothing where the framework has no gradients.
        """
        ...

    def run_real(self, batch: Batch) -> list[Array]:
        """The results of the quantized model itself, with the kernels that ship."""
        ...


class Quantizer(Protocol):
    """A tool that quantizes. Settings are plain values with the same names in every trial, so they can be logged.

    It may have a `suffix`, where what it writes is of another kind than what `prepare` gives, and a method `shown` that
    gives what the user's function is to evaluate, for any model that `prepare` or `quantize` made.
    """

    settings: Mapping[str, Any]
    """What it does unless told otherwise."""

    def prepare(self, model: Any, folder: Path) -> Any:
        """The fp32 model as the tool wants it, with a name for every op; called once.

        A path below `folder`, or an object.
        """
        ...

    def quantize(
        self, model: Any, target: Path, calibration: Iterable[Batch], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> Any:
        """Write the quantized model, or return it; the ops in `keep` stay in fp32."""
        ...

    def recipe(self, settings: Mapping[str, Any], keep: Sequence[str]) -> str:
        """Code that quantizes so, to be pasted."""
        ...

    def variants(self) -> Sequence[Mapping[str, Any]]:
        """Other settings worth a trial whatever the model is, the most promising first."""
        ...

    def cures(
        self, settings: Mapping[str, Any], suggestions: Sequence[Suggestion], tensors: Mapping[str, str]
    ) -> Mapping[str, Mapping[str, Any]]:
        """Changes that cost less than fp32, which the suggestions' rules point to: what it is -> changed settings.

        `tensors` has the name of what each op writes.
        """
        ...


class Kernel(NamedTuple):
    """What a runtime executes at once: an op, several that it has fused, or a conversion of types or layouts."""

    name: str
    type: str
    ops: tuple[str, ...]
    """Of the model that was opened, the one to name it by first; of a conversion the op on whose account it is there;
    none where it is the runtime's own affair."""
    is_conversion: bool = False


class Execution(NamedTuple):
    """One execution of a kernel; the start is on the clock of `time.perf_counter`."""

    kernel: Kernel
    thread: str
    start_us: float
    duration_us: float


class Recorded(NamedTuple):
    """What a profiler saw of one run."""

    executions: list[Execution]
    """None of which is part of another."""
    slices: list[Slice]
    """Everything that the runtime tells about the run."""


class Timer(Protocol):
    """A model, opened as it ships, that can be run with and without its runtime's profiler."""

    resolution_us: float
    """Of the profiler's clock."""
    is_quantized: bool
    notes: list[str]
    traces: dict[str, bytes]
    """Name of a file -> what the runtime's own profiler has written, once it is closed."""

    def prepare(self, batch: Batch) -> Any:
        """What `run` and `run_profiled` take, so that their time is the model's."""
        ...

    def run(self, prepared: Any) -> float:
        """The seconds that it took, as `run_profiled`, which does not count the starting of a profiler."""
        ...

    def run_profiled(self, prepared: Any) -> float: ...

    def close(self) -> list[Recorded]:
        """One for each run with the profiler."""
        ...


def open_models(reference: Any, quantized: Any, *, memory_budget: int = 1 << 30) -> Adapter:
    """The adapter for a pair of models, given as paths or as objects."""
    kind = _kind_of_both(reference, quantized, "compare")
    made = _package(kind).open_adapter(reference, quantized, memory_budget=memory_budget)
    return cast("Adapter", made)


def open_switches(reference: Any, quantized: Any) -> Switchable:
    """The same pair as one model whose quantization can be switched on and off."""
    kind = _kind_of_both(reference, quantized, "probe")
    return cast("Switchable", _package(kind).open_switches(reference, quantized))


def _kind_of_both(reference: Any, quantized: Any, verb: str) -> str:
    kinds = {kind_of(m) for m in (reference, quantized) if m is not None}
    found = next(iter(kinds), "")
    if len(kinds) == 1 and found in _EXTRAS and (reference is not None or found != "onnx"):
        return found
    given = " and ".join(describe(m) for m in (reference, quantized))
    raise ModelError(f"cannot {verb} {given}; {_PAIRS}. {_EXPECTED}")


def open_timer(model: Any, batch: Batch, threads: int | None = None, like: Any = None) -> Timer:
    """`batch` is like those that it will be run with; without `threads` the runtime decides.

    `like` is a model whose ops are ops here, too, whatever is inside of them.
    """
    opened: Timer = _adapter_of(model).open_timer(model, batch, threads, like)
    return opened


def name_twins(reference: Any, quantized: Any, batch: Batch) -> dict[str, list[str]]:
    """Op of the quantized model -> ops of the reference that it stands for."""
    kind = _kind_of_both(reference, quantized, "compare")
    found: dict[str, list[str]] = _package(kind).name_twins(reference, quantized, batch)
    return found


def onnxruntime_quantizer(**settings: Any) -> Quantizer:
    return cast("Quantizer", _part("onnx", "quantizer").OnnxRuntimeQuantizer(**settings))


def torch_quantizer(**settings: Any) -> Quantizer:
    return cast("Quantizer", _part("torch", "quantizer").TorchQuantizer(**settings))


def tensorflow_quantizer(**settings: Any) -> Quantizer:
    return cast("Quantizer", _part("tensorflow", "quantizer").TensorFlowQuantizer(**settings))


def mxnet_quantizer(**settings: Any) -> Quantizer:
    return cast("Quantizer", _part("mxnet", "quantizer").MxnetQuantizer(**settings))


def default_quantizer(model: Any, settings: Mapping[str, Any] | None = None) -> Quantizer:
    """The tool of the model's own framework; it may be told the `settings` of a trial that it has made."""
    approach = {"approach": settings["approach"]} if settings and "approach" in settings else {}
    if kind_of(model) == "torch":
        return torch_quantizer(**approach)
    if kind_of(model) == "tensorflow":
        return tensorflow_quantizer(**approach)
    if kind_of(model) == "mxnet":
        return mxnet_quantizer()
    return onnxruntime_quantizer(preprocess=(settings or {}).get("preprocess", True))


def quantize_to_ranges(model: Any, ranges: Mapping[str, tuple[float, float]]) -> Any:
    """The model as ONNX Runtime quantizes it to these ranges of its tensors."""
    return _part("onnx", "quantizer").quantize_to_ranges(model, ranges)


def read_inputs(model: Any) -> list[Input]:
    """What a model takes."""
    inputs: list[Input] = _adapter_of(model).read_inputs(model)
    return inputs


def open_results(model: Any) -> Callable[[Batch], list[Array]]:
    """A function that gives the results of a model, run with the kernels that ship."""
    opened: Callable[[Batch], list[Array]] = _adapter_of(model).open_results(model)
    return opened


def digest_model(model: Any) -> str:
    """The same for the same model only."""
    found: str = _adapter_of(model).digest_model(model)
    return found


def measure_size(model: Any) -> float:
    """Kilobytes that a model takes on disk, or its parameters and buffers in memory."""
    size: float = _adapter_of(model).measure_size(model)
    return size


def save_model(model: Any, target: Path) -> None:
    """Where it can be loaded from again; ONNX as it is, PyTorch as a state_dict, MXNet as a folder of its files."""
    _adapter_of(model).save_model(model, target)


def measure_latency(model: Any, batch: Batch) -> float:
    """Milliseconds that a model takes for this batch, the median of some runs."""
    run = open_results(model)
    times: list[float] = []
    run(batch)
    began = time.perf_counter()
    while len(times) < _LEAST_RUNS or (time.perf_counter() - began < _LATENCY_S and len(times) < _MOST_RUNS):
        start = time.perf_counter()
        run(batch)
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def measure_throughput(model: Any, batch: Batch) -> float:
    """Samples a second, in batches like this."""
    samples = next((len(array) for array in batch.values() if array.ndim), 1)
    return 1000 * samples / measure_latency(model, batch)


def measure_memory(model: Any, batch: Batch) -> float:
    """Megabytes by which the process grows at its peak while the model is opened and run; Linux only."""
    if not _CLEAR_REFS.exists():
        raise UsageError(f"memory was asked for on {sys.platform}; it can be measured on Linux only. Leave it out.")
    held = 0.0 if isinstance(model, str | PathLike | bytes) else measure_size(model) / 1000
    gc.collect()
    with suppress(AttributeError):  # of the GNU C library only
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before would hide what is taken now
    before = _resident_mb("VmRSS")
    _CLEAR_REFS.write_text("5")  # the peak starts anew
    open_results(model)(batch)
    return max(0.0, _resident_mb("VmHWM") - before) + held


def _resident_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def gather_bytes(data: bytes) -> list[bytes]:
    """What every process of torch.distributed gives, in the order of their ranks."""
    found: list[bytes] = _part("torch", "distributed").gather_bytes(data)
    return found


def read_graph(model: Any) -> list[GraphNode]:
    """The ops of one model and what they read."""
    nodes: list[GraphNode] = _adapter_of(model).read_graph(model)
    return nodes


def _adapter_of(model: Any) -> ModuleType:
    """The package for one model."""
    kind = kind_of(model)
    if kind in _EXTRAS:
        return _package(kind)
    raise ModelError(
        f"cannot read {describe(model)}; expected an ONNX, a PyTorch, a TensorFlow or an MXNet model. {_EXPECTED}"
    )


def _package(kind: str) -> ModuleType:
    return _part(kind, "")


def _part(kind: str, module: str) -> ModuleType:
    try:
        importlib.import_module(f"inc_tb.adapters.{kind}")
        return importlib.import_module(f"inc_tb.adapters.{kind}{'.' if module else ''}{module}")
    except ModuleNotFoundError as error:
        raise ModelError(
            f"reading {_EXTRAS[kind]} models needs {error.name}, which is not installed: pip install 'inc-tb[{kind}]'."
        ) from error


def describe(model: Any) -> str:
    if model is None:
        return "None"
    if isinstance(model, bytes | bytearray):
        return f"a model of {len(model) / 1000:.0f} kB in memory"
    return str(model) if isinstance(model, str | PathLike) else f"a {type(model).__module__}.{type(model).__qualname__}"


def is_checkpoint(path: Path) -> bool:
    """Weights of a TensorFlow model without its graph; also the name that all files of one begin with."""
    of_tensorflow = path.suffix in (".index", ".ckpt", ".meta") or path.name == "checkpoint" or ".data-0" in path.name
    is_there = path.is_file() and (of_tensorflow or path.name.endswith(".weights.h5"))
    return is_there or (not path.exists() and Path(f"{path}.index").is_file())


def _is_mxnet(path: Path) -> bool:
    """A network, the name that all files of one begin with, or a folder that holds one."""
    if path.is_dir():
        return any(path.glob(f"*{_MXNET}"))
    return path.name.endswith(_MXNET) if path.is_file() else Path(f"{path}{_MXNET}").is_file()


def kind_of(model: Any) -> str:
    """onnx, torch, tensorflow or mxnet; anything else is what was given instead."""
    if isinstance(model, str | PathLike):
        path = Path(model)
        if _is_mxnet(path):
            return "mxnet"
        if path.is_dir():
            return "tensorflow"
        if is_checkpoint(path):
            return "tensorflow"
        if not path.is_file():
            raise ModelError(
                f"{path}: no such file; expected a model (.onnx, .pb, .tflite, .keras, -symbol.json). Check the path."
            )
        return _SUFFIXES.get(path.suffix.lower(), path.suffix.lower())
    if type(model).__name__ == "ModelProto":
        return "onnx"
    torch = sys.modules.get("torch")  # whoever has such a model has loaded it
    if torch is not None and isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
        return "torch"
    first = model[0] if isinstance(model, tuple) and model else model  # a symbol and its parameters
    homes = [c.__module__.partition(".")[0] for c in type(first).__mro__]
    if "mxnet" in homes:
        return "mxnet"
    is_lite = isinstance(model, bytes | bytearray) and model[4:8] == b"TFL3"
    return "tensorflow" if is_lite or {"tensorflow", "keras", "tf_keras"} & set(homes) else type(model).__name__
