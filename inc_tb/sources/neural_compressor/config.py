"""What the configuration of a tuning by Neural Compressor asks for, in our words: its YAML files, and its objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from inc_tb.errors import UsageError
from inc_tb.frameworks.framework import Framework, Tool
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.frameworks.registry import framework_of

_MOST_BYTES = 1 << 20


@dataclass
class TuningConfig:
    """`inc_tb.tune(model, data, evaluate, quantizer=config.quantizer(model), **config.arguments)` does as it says."""

    source: str
    """What it was read from."""
    framework: str = ""
    """Of the model that it is for, where it says so."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of `inc_tb.tune`."""
    wanted: dict[str, Any] = field(default_factory=dict)
    """Option of a tool -> value."""
    told: dict[str, str] = field(default_factory=dict)
    """Argument or option -> the words of the configuration that it comes from."""
    notes: list[str] = field(default_factory=list)
    """What it says beyond that, and what becomes of it."""

    def quantizer(self, model: Any) -> Quantizer:
        """The tool of the model's framework, as the configuration wants it; what that cannot do is noted."""
        framework = framework_of(model)
        self.check(framework)
        if not framework.tools:
            return framework.make_quantizer({})  # which says what to do instead
        tool = framework.tools[0]
        values = {option.name: option.default for option in tool.options} | self.options(tool)
        return framework.make_quantizer({**tool.settings(values), **self.settings(framework)}, tool)

    def check(self, framework: Framework) -> None:
        """Before anything is quantized."""
        if self.framework and self.framework != framework.name:
            raise UsageError(
                f"{self.source} is for another framework ({self.told['framework']}), the model is one of "
                f"{framework.title}. Correct the file, or give its model."
            )

    def options(self, tool: Tool) -> dict[str, Any]:
        """Those that the tool has, with values that it knows."""
        known = {option.name: option for option in tool.options}
        found = {}
        for name, value in self.wanted.items():
            if name == "dynamic" and not value:
                continue
            if name not in known or (known[name].choices and value not in known[name].choices):
                self.notes.append(f"{self.told[name]}: {tool.title} cannot be told this by inc-tb; left out")
            else:
                found[name] = value
        return found

    def settings(self, framework: Framework) -> dict[str, Any]:
        """Of its tool, where there is no option for them: it would choose by the model whether to be dynamic."""
        is_static = framework.name == "torch" and self.wanted.get("dynamic") is False
        return {"approach": "static"} if is_static else {}


def read_config(given: Any) -> TuningConfig:
    """Of a YAML file as Neural Compressor 1.x has it, or with the fields of 2.x; or of a PostTrainingQuantConfig."""
    from inc_tb.sources.neural_compressor.config_fields import take_over

    if isinstance(given, str | PathLike):
        path = Path(given)
        found = TuningConfig(path.name)
        take_over(found, _read_yaml(path))
        return found
    found = TuningConfig(type(given).__name__)
    take_over(found, given if isinstance(given, Mapping) else _fields_of(given))
    return found


def _read_yaml(path: Path) -> Mapping[Any, Any]:
    try:
        import yaml
    except ImportError as error:
        raise UsageError(f"reading {path} needs PyYAML, which is not installed: pip install 'inc-tb[yaml]'.") from error
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise UsageError(f"{path}: has {size} bytes; expected a configuration of at most {_MOST_BYTES}.")
        found = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); expected a YAML file.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # dates and numbers that are none, among others
        why = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{path}: is no YAML ({why[:200]}). Correct the file.") from error
    if not isinstance(found, Mapping):
        raise UsageError(f"{path}: holds a {type(found).__name__}; expected names and values, such as tuning: ….")
    return found


def _fields_of(given: Any) -> dict[str, Any]:
    """Of an object of Neural Compressor 2.x: PostTrainingQuantConfig, and the criteria in it."""
    if not hasattr(given, "tuning_criterion") or not hasattr(given, "accuracy_criterion"):
        raise UsageError(
            f"a {type(given).__name__} was given; expected the path of a YAML file, or a PostTrainingQuantConfig."
        )
    found = {name.lstrip("_"): value for name, value in vars(given).items()}
    for name in ("tuning_criterion", "accuracy_criterion"):
        found[name] = {key.lstrip("_"): value for key, value in vars(getattr(given, name)).items()}
    return found
