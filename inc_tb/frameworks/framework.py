"""What a framework is: one object, which its package exports and nobody else names.

To add one: a package with a subclass of Framework, exported as FRAMEWORK (here) or through the entry-point group
`inc_tb.frameworks` (anywhere else). `recognizes` and `open_pair` are enough for a diagnosis; whatever else it brings
it can do. Nothing of the framework itself may be imported until a method is called.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from inc_tb.errors import ModelError, UsageError
from inc_tb.frameworks.carried import Carried, Found
from inc_tb.frameworks.formats import PLAIN, Format
from inc_tb.frameworks.language import Language
from inc_tb.frameworks.ops import Array, Batch, Input, Macs
from inc_tb.frameworks.protocols import Adapter, Quantizer, Switchable, Timer
from inc_tb.records import GraphNode, Rewrite

_ABILITIES = {
    "open_pair": "be compared", "open_switches": "be probed", "name_twins": "be compared in time",
    "read_inputs": "be read one by one", "read_graph": "be shown as graphs", "open_results": "be run one by one",
    "open_timer": "be timed", "digest_model": "be told apart", "measure_size": "be measured", "save_model": "be saved",
    "load_stored": "be loaded from disk", "open_tokenizer": "be given text",
    "open_language": "be rounded layer by layer", "write_bits": "be told their bits layer by layer",
    "count_macs": "be told by their multiplications",
    "quantize_to_ranges": "be quantized to given ranges", "make_quantizer": "be quantized without a quantizer of yours",
    "find_rewrites": "be rewritten before they are quantized", "apply_rewrites": "be rewritten from a record",
}  # fmt: skip
"""What a model of a framework cannot do that lacks the method of this name."""
_INSTEAD = {"quantize_to_ranges": "give the quantized model instead", "make_quantizer": "give one"}


class Option(NamedTuple):
    """An option of `inc-tb tune` that a tool takes. Tools may share one, each with its own meaning of it."""

    name: str
    """As on the command line: per-channel."""
    help: str
    choices: tuple[str, ...] = ()
    """One of these; without any it is a switch."""
    default: str | bool | None = False
    """A switch that is not off by default can be switched off: --no-name. None is to be told from both."""


@dataclass(frozen=True)
class Tool:
    """A tool that quantizes models of a framework: a class that fulfils Quantizer, and its command-line options."""

    name: str
    """Of the class, which is a public name of inc_tb."""
    title: str
    """As people call it: ONNX Runtime."""
    place: str
    """Of the class in the framework's package: quantizer:OnnxRuntimeQuantizer."""
    options: Sequence[Option] = ()
    settings: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """From the values of the options, by their names, to the arguments of the class."""
    prepares_by: Sequence[str] = ()
    """Settings of a trial that the class must be told to prepare a model as for that trial."""


class Framework(ABC):
    """Everything that inc-tb knows about a framework."""

    name: str
    """In logs and records."""
    title: str
    """As people call it."""
    extra: str = ""
    """What `pip install 'inc-tb[extra]'` installs for it; "" where it comes with a package of its own."""
    models: str
    """What its models are, for a message: .onnx files or onnx.ModelProto objects."""
    suffixes: Sequence[str] = ()
    """Of its files, for a message."""
    saved_suffix: str = ""
    """Of what `save_model` makes of an object."""
    words: ClassVar[Mapping[str, str]] = {}
    """Types of its ops -> what ONNX calls them, where that differs: rules know ONNX's words."""
    channels_last: bool = False
    """Where the channels of images are; else behind the samples."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Variables that the command line sets before the framework is loaded, unless its user has."""
    thread_variables: Sequence[str] = ()
    """Those that say how many threads it has, for a framework that looks at them once, when it is loaded."""
    takes_any_folder: bool = False
    """Whether a folder that no other framework knows is taken for a model of it, so that it is asked last."""
    reference_is_optional: bool = False
    """Whether a quantized model alone will do, because its reference can be made of it."""
    packages: Sequence[str] = ()
    """Those that decide what a quantized model computes; another version may give other results."""
    formats: Sequence[Format] = (PLAIN,)
    """The configs that it can be told by, the one of its own tool first."""
    tools: Sequence[Tool] = ()
    """The first is taken unless another one is asked for."""
    bit_tools: Sequence[str] = ()
    """Those that can be told a format for each matrix of a language model."""

    parts: ClassVar[Mapping[str, str]] = {}
    """What it can do -> where that is in its package: "open_pair": "adapter:OnnxAdapter". Overriding works as well."""

    @abstractmethod
    def recognizes(self, model: Any) -> bool:
        """Whether this is a model of it: a path, or an object."""

    # Of two models

    def open_pair(self, reference: Any, quantized: Any, *, memory_budget: int) -> Adapter:
        """A reference and its quantized model, to be compared op by op."""
        made: Adapter = self._do("open_pair", reference, quantized, memory_budget=memory_budget)
        return made

    def open_switches(self, reference: Any, quantized: Any) -> Switchable:
        """The pair as one model whose quantization can be switched on and off."""
        made: Switchable = self._do("open_switches", reference, quantized)
        return made

    def name_twins(self, reference: Any, quantized: Any, batch: Batch) -> dict[str, list[str]]:
        """Op of the quantized model -> ops of the reference that it stands for."""
        found: dict[str, list[str]] = self._do("name_twins", reference, quantized, batch)
        return found

    # Of one model

    def read_inputs(self, model: Any) -> Sequence[Input]:
        """What a model takes."""
        found: Sequence[Input] = self._do("read_inputs", model)
        return found

    def read_graph(self, model: Any) -> list[GraphNode]:
        """The ops of a model and what they read."""
        found: list[GraphNode] = self._do("read_graph", model)
        return found

    def open_results(self, model: Any) -> Callable[[Batch], list[Array]]:
        """A function that gives the results of a model, run with the kernels that ship."""
        opened: Callable[[Batch], list[Array]] = self._do("open_results", model)
        return opened

    def open_timer(self, model: Any, batch: Batch, threads: int | None, like: Any) -> Timer:
        """`batch` is like those that it will be run with; `like` is a model whose ops are ops here, too."""
        opened: Timer = self._do("open_timer", model, batch, threads, like)
        return opened

    def digest_model(self, model: Any) -> str:
        """The same for the same model only."""
        found: str = self._do("digest_model", model)
        return found

    def is_same(self, one: Any, other: Any) -> bool:
        """Whether two models hold the same; False where that cannot be told. Those of one size alone are read whole."""
        if not (self.can("digest_model") and self.can("measure_size")):
            return False
        return self.measure_size(one) == self.measure_size(other) and self.digest_model(one) == self.digest_model(other)

    def measure_size(self, model: Any) -> float:
        """Kilobytes that a model takes on disk, or its parameters and buffers in memory."""
        found: float = self._do("measure_size", model)
        return found

    def count_macs(self, model: Any, batch: Batch) -> Mapping[str, Macs]:
        """Op -> its multiplications for one sample like the first of the batch."""
        found: Mapping[str, Macs] = self._do("count_macs", model, batch)
        return found

    def save_model(self, model: Any, target: Path) -> None:
        """Where it can be loaded from again."""
        self._do("save_model", model, target)

    def load_stored(self, path: Path) -> Any:
        """The object that a path stands for, where models are objects."""
        return self._do("load_stored", path)

    def open_tokenizer(self, path: Path) -> Any:
        """What makes tokens of text for the language model there, and text of tokens."""
        return self._do("open_tokenizer", path)

    def open_language(self, model: Any) -> Language:
        """A language model whose matrices can be rounded one by one."""
        opened: Language = self._do("open_language", model)
        return opened

    def write_bits(self, tool: str, formats: Mapping[str, str]) -> str:
        """How one of its `bit_tools` is told a format for each matrix."""
        written: str = self._do("write_bits", tool, formats)
        return written

    def store_tuned(self, carried: Carried, folder: Path) -> Mapping[str, Any]:
        """A tuned model, so that `open_tuned` finds it in the folder; returns what that must know, as plain data."""
        if "store_tuned" in self.parts:
            told: Mapping[str, Any] = self._do("store_tuned", carried, folder)
            return told
        is_file = isinstance(carried.model, str | PathLike)
        target = folder / f"model{Path(carried.model).suffix if is_file else self.saved_suffix}"
        self.save_model(carried.model, target)
        return {"file": target.name}

    def open_tuned(self, found: Found) -> Any:
        """The model of a folder that `store_tuned` has written: by default the path of its file."""
        if "open_tuned" in self.parts:
            return self._do("open_tuned", found)
        name = found.manifest.own.get("file")
        if not isinstance(name, str) or Path(name).name != name or not (found.folder / name).exists():
            raise ModelError(f"{found.folder}: its recipe names no model file; expected a folder that was saved.")
        if found.model is not None:
            raise UsageError(f"a model was given to load {found.folder}; {self.title} models need none. Leave it out.")
        return found.folder / name

    def quantize_to_ranges(self, model: Any, ranges: Mapping[str, tuple[float, float]]) -> Any:
        """The model as its tool quantizes it to these ranges of its tensors."""
        return self._do("quantize_to_ranges", model, ranges)

    def find_rewrites(self, model: Any, batches: Iterable[Batch]) -> list[Rewrite]:
        """What could be changed about an fp32 model, without changing what it computes; the most promising first."""
        found: list[Rewrite] = self._do("find_rewrites", model, batches)
        return found

    def apply_rewrites(self, model: Any, rewrites: Sequence[Rewrite]) -> Any:
        """The fp32 model with these changes, in a form that `save_model` takes."""
        return self._do("apply_rewrites", model, rewrites)

    def read_settings(self, quantized: Any, table: Mapping[str, Any]) -> Mapping[str, Any]:
        """Arguments of its first tool, as far as they show in what it has made, or in the table of its ops."""
        if "read_settings" not in self.parts:
            return {}
        found: Mapping[str, Any] = self._do("read_settings", quantized, table)
        return found

    # What else it brings

    def as_array(self, value: Any) -> Array | None:
        """Of a tensor of its own; None for anything else."""
        return None

    def open_data(self, folder: Path, inputs: Sequence[Input]) -> Iterable[Batch] | None:
        """Batches in a form of its own, which can be gone through again and again; None for any other folder."""
        return None

    def gather_bytes(self, data: bytes) -> list[bytes] | None:
        """What every process of its group gives, in the order of their ranks; None where it has no such groups."""
        return None

    def run_name(self, path: Path) -> str:
        """What a run is called by the file of its model."""
        return path.stem

    def nameless(self, node: GraphNode) -> bool:
        """Whether an op has no name of its own in the file, so that no tool finds it."""
        return False

    def with_followers(self, ops: Sequence[str], graph: Iterable[GraphNode]) -> list[str]:
        """The ops, and those that its tool must be told to keep in fp32 along with them, in the order of the graph."""
        return list(ops)

    def make_quantizer(self, settings: Mapping[str, Any], tool: Tool | None = None) -> Quantizer:
        """A tool with these arguments; the first one unless told otherwise."""
        chosen = tool or next(iter(self.tools), None)
        if chosen is None:
            raise self._cannot("make_quantizer")
        made: Quantizer = self.part(chosen.place)(**settings)
        return made

    def versions(self) -> dict[str, str]:
        """Of its packages that are installed, without what only says how they were built."""
        found = {}
        for package in self.packages:
            with suppress(PackageNotFoundError):
                found[package] = re.sub(r"\+.*", "", version(package))
        return found

    def can(self, ability: str) -> bool:
        """Whether it has what the method of this name asks for."""
        return ability in self.parts or getattr(type(self), ability) is not getattr(Framework, ability)

    def require(self, ability: str) -> None:
        """Before work that would be for nothing without it."""
        if not self.can(ability):
            raise self._cannot(ability)

    def part(self, place: str) -> Any:
        """Something of its package, module:name, which may import the framework."""
        module, _, name = place.partition(":")
        try:
            return getattr(import_module(f"{type(self).__module__}.{module}"), name)
        except ModuleNotFoundError as error:
            how = f": pip install 'inc-tb[{self.extra}]'" if self.extra else ". Install it"
            raise ModelError(f"reading {self.title} models needs {error.name}, which is not installed{how}.") from error

    def _do(self, ability: str, *given: Any, **more: Any) -> Any:
        if ability not in self.parts:
            raise self._cannot(ability)
        return self.part(self.parts[ability])(*given, **more)

    def _cannot(self, ability: str) -> UsageError:
        instead = _INSTEAD.get(ability, f"its package has no {ability}, which its authors can add")
        return UsageError(f"{self.title} models cannot {_ABILITIES[ability]}; {instead}.")
