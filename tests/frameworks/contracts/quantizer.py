"""What every Quantizer promises, as tests.

A framework's tests subclass QuantizerContract, once for each approach of its tool. They give the class and the settings
that the approach takes, a setting that the tool does not know, the network of `tiny` (quantized by anything), and what
a config calls an op where it is not called as in the network.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import inc_tb
from inc_tb.advise.rules import RULES
from inc_tb.errors import ModelError, UsageError
from inc_tb.frameworks.carried import Example
from inc_tb.frameworks.models import digest_model, open_pair, open_results, open_switches
from inc_tb.frameworks.protocols import Quantizer
from inc_tb.frameworks.registry import framework_of
from inc_tb.records import Suggestion
from inc_tb.tuning.files import suffix_by
from tests.frameworks.contracts.tiny import RESULTS, WEIGHTS, Tiny, computed

KEPT = "second"


class QuantizerContract:
    settings: ClassVar[Mapping[str, Any]] = {}
    """What the class is told."""
    wrong: ClassVar[Mapping[str, Any]]
    """The same, with a value that it does not know."""

    @pytest.fixture(scope="class")
    @classmethod
    def tiny(cls) -> Tiny:
        raise NotImplementedError

    @staticmethod
    def make(**settings: Any) -> Quantizer:
        raise NotImplementedError

    @staticmethod
    def told(op: str) -> str:
        """What its config calls an op."""
        return op

    @pytest.fixture(scope="class")
    @classmethod
    def tool(cls, tiny: Tiny, folder: Path) -> Quantizer:
        return cls.make(**cls.settings)

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("quantizer")

    @pytest.fixture(scope="class")
    @classmethod
    def prepared(cls, tool: Quantizer, tiny: Tiny, folder: Path) -> Any:
        return tool.prepare(tiny.reference, folder / "prepared")

    @pytest.fixture(scope="class")
    @classmethod
    def quantize(cls, tool: Quantizer, tiny: Tiny, prepared: Any, folder: Path) -> Callable[..., Any]:
        """With ops that stay in fp32, and settings other than its own; each model is made once."""
        made: dict[str, Any] = {}

        def quantize(*keep: str, again: bool = False, **settings: Any) -> Any:
            key = f"{len(made)}" if again else "-".join([*keep, *map(str, settings.values())])
            if key not in made:
                target = folder / f"int8 {key}{suffix_by(tool, prepared)}"
                kept = [tiny.names[name] for name in keep]
                found = tool.quantize(prepared, target, [tiny.batch], {**tool.settings, **settings}, kept)
                made[key] = target if found is None else found
            return made[key]

        return quantize

    # Carried on

    def test_what_it_makes_is_stored_and_loaded(
        self, tool: Quantizer, tiny: Tiny, prepared: Any, quantize: Callable[..., Any], tmp_path: Path
    ) -> None:
        made, kept = quantize(KEPT), [tiny.names[KEPT]]
        examples = [Example(name, str(array.dtype), list(array.shape)) for name, array in tiny.batch.items()]
        trial = inc_tb.Trial("trial-001", 1.0, 1.0, kept, dict(tool.settings))
        tuned = inc_tb.Tuned(
            1.0, 1.0, True, trial, tmp_path, "", quantized=made, tool=type(tool).__name__, reference=tiny.reference,
            examples=examples,
        )  # fmt: skip
        folder = inc_tb.save(tuned, tmp_path / "model")
        is_path = isinstance(made, Path)
        found = inc_tb.load_model(folder, None if is_path else tiny.reference)
        assert isinstance(found, Path) is is_path
        assert framework_of(found) is framework_of(made)
        for then, now in zip(open_results(made)(tiny.batch), open_results(found)(tiny.batch), strict=True):
            np.testing.assert_array_equal(then, now)

    # Settings

    def test_settings_are_plain_values(self, tool: Quantizer, prepared: Any) -> None:
        for settings in (tool.settings, *tool.variants(), *self._cures(tool).values()):
            assert json.loads(json.dumps(settings)) == settings
            assert set(settings) == set(tool.settings)

    def test_variants_and_cures_are_something_else(self, tool: Quantizer, prepared: Any) -> None:
        for others in (list(tool.variants()), list(self._cures(tool).values())):
            told = [json.dumps(settings, sort_keys=True) for settings in (tool.settings, *others)]
            assert len(set(told)) == len(told)

    def test_there_is_something_else_to_try(self, tool: Quantizer, prepared: Any) -> None:
        assert tool.variants()

    def test_a_variant_can_be_tried(self, tool: Quantizer, tiny: Tiny, quantize: Callable[..., Any]) -> None:
        changed = {name: value for name, value in tool.variants()[0].items() if value != tool.settings[name]}
        for array in open_results(quantize(**changed))(tiny.batch):
            assert np.isfinite(array).all()

    def test_cures_say_what_they_are(self, tool: Quantizer, prepared: Any) -> None:
        assert all(what and "\n" not in what for what in self._cures(tool))

    def test_a_value_that_is_not_known_is_refused_in_one_line(self) -> None:
        (name,) = [name for name, value in self.wrong.items() if self.settings.get(name) != value]
        with pytest.raises(UsageError, match=f"{name}=.*was given; expected one of") as caught:
            self.make(**self.wrong)
        assert "\n" not in str(caught.value)

    def test_what_it_takes_is_what_its_settings_say(self, tool: Quantizer) -> None:
        own = self.make(**self.settings).settings
        assert {name: own[name] for name in self.settings} == self.settings

    # Preparing

    def test_the_prepared_model_is_the_same_function_with_the_same_ops(self, tiny: Tiny, prepared: Any) -> None:
        assert framework_of(prepared) is framework_of(tiny.reference)
        for name, array in zip(RESULTS, open_results(prepared)(tiny.batch), strict=True):
            np.testing.assert_allclose(array, computed()[name], rtol=1e-6)
        adapter = open_pair(tiny.reference, prepared)
        adapter.trace(tiny.batch)
        assert [op.compared_at for op in adapter.ops()] == list(tiny.names.values())

    def test_preparing_again_gives_the_same_and_changes_nothing(
        self, tiny: Tiny, tool: Quantizer, prepared: Any, folder: Path
    ) -> None:
        before = digest_model(tiny.reference)
        other = self.make(**self.settings)
        for at, each in enumerate((other, other)):
            again = each.prepare(tiny.reference, folder / f"again {at}")
            assert digest_model(again) == digest_model(prepared)
        assert other.settings == tool.settings
        assert digest_model(tiny.reference) == before

    def test_a_prepared_model_can_be_prepared(self, tiny: Tiny, prepared: Any, folder: Path) -> None:
        again = self.make(**self.settings).prepare(prepared, folder / "once more")
        for name, array in zip(RESULTS, open_results(again)(tiny.batch), strict=True):
            np.testing.assert_allclose(array, computed()[name], rtol=1e-6)

    def test_a_quantized_model_is_refused_in_one_line(self, quantize: Callable[..., Any], folder: Path) -> None:
        with pytest.raises(ModelError, match="quantized") as caught:
            self.make(**self.settings).prepare(quantize(), folder / "refused")
        assert "\n" not in str(caught.value)

    # Quantizing

    def test_everything_with_weights_is_quantized_and_little_is_lost(
        self, tiny: Tiny, prepared: Any, quantize: Callable[..., Any]
    ) -> None:
        dtypes = _weight_dtypes(prepared, quantize(), tiny)
        assert all(dtypes[tiny.names[name]] for name in WEIGHTS), dtypes
        switches = open_switches(prepared, quantize())  # which knows the order of results, whatever the file's is
        switches.trace(tiny.batch)
        for name, array in zip(RESULTS, switches.run_real(tiny.batch), strict=True):
            np.testing.assert_allclose(array, computed()[name], atol=0.2, err_msg=name)

    @pytest.mark.parametrize("kept", [("second",), ("side", "first")], ids=" and ".join)
    def test_ops_that_are_kept_are_in_fp32_and_the_others_are_not(
        self, tiny: Tiny, prepared: Any, quantize: Callable[..., Any], kept: tuple[str, ...]
    ) -> None:
        dtypes = _weight_dtypes(prepared, quantize(*kept), tiny)
        assert {name: bool(dtypes[tiny.names[name]]) for name in WEIGHTS} == {
            name: name not in kept for name in WEIGHTS
        }

    def test_the_same_once_more_is_the_same_model(self, tiny: Tiny, quantize: Callable[..., Any]) -> None:
        results = [open_results(quantize(KEPT, again=again))(tiny.batch) for again in (False, True)]
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_what_it_is_given_stays_as_it_is(
        self, tiny: Tiny, tool: Quantizer, prepared: Any, quantize: Callable[..., Any]
    ) -> None:
        before, settings = digest_model(prepared), json.dumps(tool.settings)
        quantize(KEPT, again=True)
        assert digest_model(prepared) == before
        assert json.dumps(tool.settings) == settings

    def test_what_is_evaluated_is_the_model(self, tool: Quantizer, prepared: Any, quantize: Callable[..., Any]) -> None:
        """Of a tool that shows something else than what it writes."""
        shown = getattr(tool, "shown", lambda model: model)
        for model in (prepared, quantize()):
            assert shown(model) is not None

    # The recipe

    @pytest.mark.parametrize("kept", [(), ("second",), ("side", "first")], ids=lambda kept: f"{len(kept)} kept")
    def test_the_recipe_is_python_and_names_what_is_kept(
        self, tiny: Tiny, tool: Quantizer, prepared: Any, kept: tuple[str, ...]
    ) -> None:
        for settings in (tool.settings, *tool.variants()):
            parsed = ast.parse(tool.recipe(settings, [tiny.names[name] for name in kept]))
            texts = {node.value for node in ast.walk(parsed) if isinstance(node, ast.Constant)}
            assert {name for name in WEIGHTS if self.told(tiny.names[name]) in texts} == set(kept)

    def test_the_recipe_of_other_settings_is_another(self, tool: Quantizer, prepared: Any) -> None:
        assert all(tool.recipe(settings, []) != tool.recipe(tool.settings, []) for settings in tool.variants())

    def _cures(self, tool: Quantizer) -> Mapping[str, Mapping[str, Any]]:
        """For everything that can be found."""
        found = [Suggestion(["op"], rule.name, "because", {}) for rule in RULES]
        return tool.cures(tool.settings, found, {"op": "tensor"})


def _weight_dtypes(reference: Any, quantized: Any, tiny: Tiny) -> dict[str, str]:
    table = inc_tb.diagnose(reference, quantized, tiny.batch).ops
    return dict(zip(table["name"], table["weight_dtype"], strict=True))
