"""`inc-tb tune --config`: what a file says takes the place of options that were not given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from inc_tb.commands.terminal import say
from inc_tb.frameworks.registry import framework_of
from inc_tb.sources.neural_compressor.config import TuningConfig, read_config

_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "tolerance": ("tolerance", "absolute"), "relative": ("absolute", "tolerance"),
    "higher_is_better": ("lower_is_better",), "strategy": ("strategy",), "max_trials": ("max_trials",),
    "timeout": ("timeout",), "objectives": ("objectives",), "samples": ("samples",), "random_seed": ("random_seed",),
    "logdir": ("logdir",),
}  # fmt: skip
"""Argument -> the option that it is on the command line, and another that goes with it."""
_SPELLED = {"objectives": "objective"}
_INVERTED = ("relative", "higher_is_better")


def with_config(path: Path | None, options: dict[str, Any]) -> TuningConfig | None:
    """Changes the options that the file speaks of and that were not given."""
    if path is None:
        return None
    config = read_config(path)
    left_out: dict[str, str] = {}
    for argument, value in config.arguments.items():
        given = next((name for name in _OPTIONS[argument] if _is_given(name)), None)
        if given is not None:
            left_out.setdefault(config.told[argument], _SPELLED.get(given, given).replace("_", "-"))
            continue
        name = _OPTIONS[argument][0]
        options[name] = not value if argument in _INVERTED else Path(value) if argument == "logdir" else value
    for told, option in left_out.items():
        say(f"note: --{option} was given, so {told} of {config.source} is left out")
    return config


def tool_options(config: TuningConfig, model: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Those of the model's tool as well; returned are settings for which there is no option."""
    framework = framework_of(model)
    config.check(framework)
    tool = next(iter(framework.tools), None)
    for name, value in config.options(tool).items() if tool is not None else ():
        parameter = f"tool_{name.replace('-', '_')}"
        if not _is_given(parameter):
            options[parameter] = value
        elif options[parameter] != value:
            say(f"note: --{name} was given, so {config.told[name]} of {config.source} is left out")
    _say_notes(config)
    return config.settings(framework)


def leave_tool_options(config: TuningConfig) -> None:
    """To a quantizer of the user's own."""
    if config.wanted:
        told = ", ".join(dict.fromkeys(config.told[name] for name in config.wanted))
        say(f"note: --quantizer was given, so {told} of {config.source} is left out")
    _say_notes(config)


def _say_notes(config: TuningConfig) -> None:
    for note in config.notes:
        say(f"note: {config.source}: {note}")


def _is_given(parameter: str) -> bool:
    return click.get_current_context().get_parameter_source(parameter) is not ParameterSource.DEFAULT
