"""The options of `inc-tb tune` that belong to the tools that quantize: each names its own, for models of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from inc_tb.errors import UsageError
from inc_tb.frameworks.framework import Framework, Option, Tool
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.frameworks.registry import framework_of, frameworks


def with_tool_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of all tools, each once, in front of what the command has itself."""
    for name, shared in reversed(_by_name().items()):
        command = _as_click(name, shared)(command)
    return command


def quantizer_for(given: Any, model: str, options: Mapping[str, Any], **settings: Any) -> Quantizer:
    """The first tool of the model's framework, told what was given on the command line, and settings beside it."""
    framework = framework_of(given)
    if not framework.tools:
        return framework.make_quantizer({})  # which says what to do instead
    tool = framework.tools[0]
    own = {option.name: option for option in tool.options}
    _refuse_others(own, framework, model)
    values = {name: options[_parameter(name)] for name in own}
    for name, option in own.items():
        if option.choices and values[name] not in (*option.choices, option.default):
            expected = " or ".join(option.choices)
            raise UsageError(f"--{name} {values[name]} was given for {model}, which is {_whose(framework)}; expected "
                             f"{expected}.")  # fmt: skip
    return framework.make_quantizer({**tool.settings(values), **settings}, tool)


def given_options() -> list[str]:
    """The options of tools that were given, as on the command line."""
    context = click.get_current_context()
    return [
        name for name in _by_name() if context.get_parameter_source(_parameter(name)) is not ParameterSource.DEFAULT
    ]


def _refuse_others(own: Mapping[str, Option], framework: Framework, model: str) -> None:
    for name in given_options():
        if name not in own:
            titles = " and ".join(tool.title for tool, _ in _by_name()[name])
            raise UsageError(
                f"--{name} was given for {model}, which is {_whose(framework)}; it is for {titles}. Leave it out."
            )


def _whose(framework: Framework) -> str:
    return f"a model of {framework.title}"


def _by_name() -> dict[str, list[tuple[Tool, Option]]]:
    found: dict[str, list[tuple[Tool, Option]]] = {}
    for framework in frameworks():
        for tool in framework.tools:
            for option in tool.options:
                found.setdefault(option.name, []).append((tool, option))
    return found


def _as_click(name: str, shared: list[tuple[Tool, Option]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    option = shared[0][1]
    helps: dict[str, list[str]] = {}
    for tool, each in shared:
        helps.setdefault(each.help, []).append(tool.title)
    text = " ".join(f"{' and '.join(titles)}: {words}" for words, titles in helps.items())
    if option.choices:
        choices = dict.fromkeys(choice for _, each in shared for choice in each.choices)
        return click.option(
            f"--{name}", _parameter(name), default=option.default, show_default=True, type=click.Choice(list(choices)),
            help=text,
        )  # fmt: skip
    if option.default is False:
        return click.option(f"--{name}", _parameter(name), is_flag=True, help=text)
    return click.option(f"--{name}/--no-{name}", _parameter(name), default=option.default, help=text)


def _parameter(name: str) -> str:
    return f"tool_{name.replace('-', '_')}"
