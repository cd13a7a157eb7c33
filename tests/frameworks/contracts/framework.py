"""What every Framework promises, as tests.

A framework's tests subclass FrameworkContract and give the object that its package exports and one fixture: models of
every kind that it takes, paths and objects. What it opens for them has contracts of its own beside this one.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import inc_tb
from inc_tb.errors import ModelError, UsageError
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.framework import Framework, Tool
from inc_tb.frameworks.registry import find_tool, framework_of, frameworks, named

WAYS = [
    Settings(True, "uint8", "int8"), Settings(False, "int8", "int8"), Settings(False, "", "int8", dynamic=True),
    Settings(True, "", "int4"), Settings(False, "int16", "int8"), Settings(False, "", ""),
]  # fmt: skip
"""In which models are quantized."""


class FrameworkContract:
    framework: ClassVar[Framework]

    @pytest.fixture
    def models(self) -> list[Any]:
        raise NotImplementedError

    def test_it_is_found_by_its_name(self) -> None:
        assert named(self.framework.name) is self.framework
        assert [f.name for f in frameworks()].count(self.framework.name) == 1
        assert self.framework.title
        assert self.framework.models

    def test_its_extra_can_be_installed(self) -> None:
        project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
        assert not self.framework.extra or self.framework.extra in project["optional-dependencies"]

    def test_its_models_are_recognized(self, models: list[Any]) -> None:
        for model in models:
            assert self.framework.recognizes(model), model
            assert framework_of(model) is self.framework
            others = [f.name for f in frameworks() if f is not self.framework and f.recognizes(model)]
            assert not others or Path(model).is_dir(), "only of a folder several may believe that it is theirs"

    def test_nothing_else_is_recognized(self, tmp_path: Path) -> None:
        text = tmp_path / "notes.txt"
        text.write_text("no model")
        for other in (text, str(text), tmp_path / "nothing", 3, b"bytes", np.zeros(3), object(), {}, [], (), None):
            assert not self.framework.recognizes(other), other

    def test_a_file_that_is_not_there_is_told_from_one_of_another_kind(self, tmp_path: Path) -> None:
        for suffix in self.framework.suffixes:
            with pytest.raises(ModelError, match="no such file") as caught:
                framework_of(tmp_path / f"model{suffix}")
            assert suffix in str(caught.value)

    # What it can do

    def test_what_it_says_that_it_can_do_is_there(self) -> None:
        for ability, place in self.framework.parts.items():
            assert hasattr(Framework, ability)
            assert self.framework.can(ability)
            assert callable(self.framework.part(place)), place

    def test_what_it_cannot_do_is_told_in_one_line(self, models: list[Any]) -> None:
        calls = {"quantize_to_ranges": ({},), "open_switches": (models[0],), "save_model": (Path("nowhere"),)}
        for ability, arguments in calls.items():
            if not self.framework.can(ability):
                with pytest.raises(UsageError, match=f"{self.framework.title} models cannot") as caught:
                    getattr(self.framework, ability)(models[0], *arguments)
                assert "\n" not in str(caught.value)

    # Its configs

    @pytest.mark.parametrize("way", WAYS)
    def test_configs_for_a_model_have_names_of_their_own(self, way: Settings) -> None:
        made = {form: recipe for form in self.framework.formats if (recipe := form.make(way)) is not None}
        names = [name for form in made for name in (form.tool, *form.aliases)]
        assert [name for name, count in Counter(names).items() if count > 1] == []
        assert "json" in names, "a plain list of names, for tools that nobody knows"
        for form, recipe in made.items():
            assert recipe.tool == form.tool
            assert recipe.label
            assert recipe.before + recipe.item + recipe.after

    # Its tools

    def test_tools_are_public_names(self) -> None:
        for tool in self.framework.tools:
            assert find_tool(tool.name) == (self.framework, tool)
            assert getattr(inc_tb, tool.name) is self.framework.part(tool.place)

    def test_the_options_of_tools_are_their_settings(self) -> None:
        for tool in self.framework.tools:
            options = {option.name: option.default for option in tool.options}
            assert len(options) == len(tool.options)
            quantizer = self.framework.make_quantizer(tool.settings(options), tool)
            assert quantizer.settings == self.framework.make_quantizer({}, tool).settings
            assert set(tool.prepares_by) <= set(quantizer.settings)

    def test_every_value_of_an_option_is_another_setting(self) -> None:
        for tool in self.framework.tools:
            for option in tool.options:
                told = [_told(self.framework, tool, option.name, value) for value in option.choices or (False, True)]
                assert all(one != other for i, one in enumerate(told) for other in told[:i]), option.name


def _told(framework: Framework, tool: Tool, name: str, value: Any) -> Any:
    """By one option, and the defaults of the others; not all go together."""
    options = {option.name: option.default for option in tool.options}
    try:
        return dict(framework.make_quantizer(tool.settings({**options, name: value}), tool).settings)
    except UsageError as error:
        return str(error)
