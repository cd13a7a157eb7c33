"""Torch's own tools behind the protocol: every setting does what it says, and the recipe does the same."""

from __future__ import annotations

import copy
import itertools
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

import inc_tb
from inc_tb import TorchQuantizer
from inc_tb.errors import ModelError, UsageError
from inc_tb.frameworks.models import default_quantizer, measure_size, open_results, open_switches
from inc_tb.records import Suggestion
from inc_tb.search.simulation import Simulation
from tests.torch_defects import MARKS, calibration, one_thread, outputs, samples, seeded, state, trained

pytestmark = MARKS
NOWHERE = Path("/nonexistent")
APPROACHES = ("static", "pt2e", "dynamic", "pt2e-dynamic")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def quantized(model: nn.Module, keep: Sequence[str] = (), data: Any = None, **settings: Any) -> Any:
    tool = TorchQuantizer(**settings)
    ready = tool.prepare(model, NOWHERE)
    return tool.quantize(ready, NOWHERE, calibration() if data is None else data, tool.settings, keep)


def by_recipe(model: nn.Module, keep: Sequence[str] = (), data: Any = None, **settings: Any) -> Any:
    tool = TorchQuantizer(**settings)
    ready = tool.prepare(model, NOWHERE)
    batches = [tuple(map(torch.tensor, b.values())) for b in (calibration() if data is None else data)]
    given = {"model": ready, "example_inputs": batches[0], "calibration_batches": batches}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(tool.recipe(tool.settings, keep), given)
    return given["quantized"]


def rows(*shape: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    return [{"x": random.normal(size=shape).astype(np.float32)} for _ in range(2)]


def results(model: Any, data: Any) -> np.ndarray:
    return open_results(model)(data[0])[0]


# Approaches


def test_static_models_have_integers_between_their_modules() -> None:
    made = quantized(trained("mlp", 0), approach="static")
    assert isinstance(made, fx.GraphModule)
    assert {type(made.get_submodule(f"body.{i}")).__name__ for i in (0, 2, 4, 6)} == {"LinearReLU"}
    assert made.head(torch.quantize_per_tensor(torch.ones(1, 24), 0.1, 0, torch.quint8)).dtype is torch.quint8


def test_pt2e_models_have_roundings_in_their_graph() -> None:
    made = quantized(trained("mlp", 0), approach="pt2e")
    kinds = [str(node.target) for node in made.graph.nodes if node.op == "call_function"]
    assert sum("quantize_per_tensor" in kind and "dequantize" not in kind for kind in kinds) == 5
    found = quantized(trained("mlp", 0), approach="pt2e-dynamic")
    kinds = [str(node.target) for node in found.graph.nodes if node.op == "call_function"]
    assert sum("choose_qparams" in kind for kind in kinds) == 5


def test_the_dynamic_approach_reads_no_data() -> None:
    def broken() -> Iterator[Any]:
        raise AssertionError("read")
        yield

    made = quantized(trained("mlp", 0), approach="dynamic", data=broken())
    homes = {
        type(m).__module__ for m in made.modules() if "Linear" in type(m).__name__ and "Packed" not in str(type(m))
    }
    assert homes == {"torch.ao.nn.quantized.dynamic.modules.linear"}


def test_auto_is_static_for_convolutions_and_dynamic_for_others() -> None:
    chosen = {}
    for network in ("residual", "mlp", "transformer"):
        tool = TorchQuantizer()
        tool.prepare(trained(network, 0), NOWHERE)
        chosen[network] = tool.settings["approach"]
    assert chosen == {"residual": "static", "mlp": "dynamic", "transformer": "dynamic"}
    assert isinstance(default_quantizer(trained("mlp", 0)), TorchQuantizer)


def test_recurrent_layers_are_quantized_dynamically() -> None:
    made = quantized(seeded(Recurrent), approach="dynamic")
    assert type(made.lstm).__module__.startswith("torch.ao.nn.quantized.dynamic")
    kept = quantized(seeded(Recurrent), keep=("lstm",), approach="dynamic")
    assert type(kept.lstm) is nn.LSTM


@pytest.mark.parametrize("approach", APPROACHES)
def test_the_model_that_is_given_is_left_alone(approach: str) -> None:
    model = trained("mlp", 0).train()
    before = state(model)
    made = quantized(model, approach=approach)
    assert state(model) == before
    own = {p.data_ptr() for p in model.parameters()}
    assert own.isdisjoint(v.data_ptr() for v in made.state_dict().values() if isinstance(v, Tensor))


@pytest.mark.parametrize("approach", APPROACHES)
def test_any_number_of_samples_runs(approach: str) -> None:
    made = quantized(trained("mlp", 0), approach=approach)
    whole = outputs(made, samples("truth")[:5])
    if "dynamic" not in approach:
        np.testing.assert_allclose(outputs(made, samples("truth")[:1]), whole[:1], rtol=1e-4, atol=1e-4)
    assert whole.shape == (5, 10)


@pytest.mark.parametrize("approach", APPROACHES)
def test_data_may_come_in_single_samples(approach: str) -> None:
    ones = [{"image": image[None]} for image in samples("calibration")[:8]]
    assert outputs(quantized(trained("mlp", 0), approach=approach, data=ones), samples("truth")).shape == (200, 10)


@pytest.mark.parametrize("approach", ["static", "pt2e"])
def test_what_is_not_changed_is_smaller_in_int8(approach: str) -> None:
    model = trained("mlp", 0)
    assert measure_size(quantized(model, approach=approach)) < 0.5 * measure_size(model)


def test_dynamic_models_are_smaller_too() -> None:
    model = trained("mlp", 0)
    assert measure_size(quantized(model, approach="dynamic")) < 0.5 * measure_size(model)


# Settings


def test_a_scale_for_each_channel() -> None:
    for approach, at in (("static", "body.0"), ("dynamic", "body.0")):
        schemes = [
            quantized(trained("mlp", 0), approach=approach, per_channel=per_channel)
            .get_submodule(at)
            .weight()
            .qscheme()
            for per_channel in (True, False)
        ]
        assert schemes == [torch.per_channel_affine, torch.per_tensor_affine]


def test_reduce_range_leaves_a_bit_of_activations_unused() -> None:
    for approach in ("static", "pt2e"):
        steps = []
        for reduce_range in (True, False):
            made = quantized(trained("mlp", 0), approach=approach, calibrator="minmax", reduce_range=reduce_range)
            switches = open_switches(trained("mlp", 0), made)
            switches.trace({"image": samples("probe")})
            rounding: Any = switches._sites.rounding.inputs["image:input of the model"][1]  # type: ignore[attr-defined]
            steps.append(len(torch.unique(rounding(torch.linspace(0, 1, 10_000)))))
        assert steps == [128, 256]


def test_calibrators_choose_different_ranges() -> None:
    """One value in half a million is four times the others: the histogram leaves it out."""
    images = np.random.default_rng(0).uniform(0, 1, (8192, 1, 8, 8)).astype(np.float32)
    images[0, 0, 4, 4] = 4
    data = [{"image": images}]
    steps = {}
    for calibrator in ("histogram", "minmax"):
        made = quantized(trained("mlp", 0), approach="static", calibrator=calibrator, data=data)
        steps[calibrator] = float(next(v for k, v in made.state_dict().items() if k.endswith("_scale_0")))
    assert steps["minmax"] == pytest.approx(4 / 127, rel=0.01)
    assert steps["histogram"] < steps["minmax"] / 2


@pytest.mark.parametrize(
    "wrong", [{"approach": "qat"}, {"calibrator": "entropy"}, {"per_channel": "yes"}, {"reduce_range": 7}]
)
def test_settings_that_are_not_known_are_refused(wrong: dict[str, Any]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(UsageError, match=f"{name}={value!r} was given; expected one of") as error:
        TorchQuantizer(**wrong)
    assert "\n" not in str(error.value)


def test_variants_change_one_thing_each_and_differ() -> None:
    for approach in APPROACHES:
        tool = TorchQuantizer(approach=approach)  # type: ignore[arg-type]
        others = tool.variants()
        assert others
        for settings in others:
            assert settings.keys() == tool.settings.keys()
            assert sum(settings[name] != tool.settings[name] for name in settings) == 1
        results = [
            outputs(tool.quantize(trained("mlp", 0), NOWHERE, calibration(), settings, ()), samples("truth"))
            for settings in (tool.settings, *others)
        ]
        for one, other in itertools.combinations(results, 2):
            assert not np.array_equal(one, other), approach


def test_cures_follow_from_what_was_found() -> None:
    clipped = Suggestion(["head"], "clipped_range", "it is", {})
    static = TorchQuantizer(approach="static", per_channel=False)
    found = static.cures(static.settings, [clipped], {})
    assert [{k: v for k, v in f.items() if v != static.settings[k]} for f in found.values()] == [
        {"per_channel": True},
        {"calibrator": "minmax"},
    ]
    pt2e = TorchQuantizer(approach="pt2e")
    assert pt2e.cures(pt2e.settings, [clipped], {}) == {}


# What is kept


@pytest.mark.parametrize("approach", APPROACHES)
def test_modules_that_are_kept_are_fp32(approach: str) -> None:
    model = trained("mlp", 0)
    kept = quantized(model, keep=("body.2", "head"), approach=approach)
    weights = [v for v in kept.state_dict().values() if isinstance(v, Tensor) and v.dtype is torch.float32]
    for path in ("body.2", "head"):
        own = model.get_submodule(path).weight
        assert any(w.shape == own.shape and torch.equal(w, own) for w in weights)
    error = np.square(outputs(kept, samples("truth")) - outputs(model, samples("truth"))).mean()
    every = tuple(f"body.{i}" for i in (0, 2, 4, 6))
    nothing = quantized(model, keep=(*every, "head"), approach=approach)
    assert error > 0
    np.testing.assert_allclose(outputs(nothing, samples("truth")), outputs(model, samples("truth")), atol=1e-5)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Sums(nn.Module):
    """The same function written in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.add(self.a(x), x)
        x = self.b(x) + x
        y = self.c(x)
        y += x
        return y


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.v, self.w = (nn.Parameter(torch.randn(8, 8) / 3) for _ in range(2))
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.relu(functional.linear(functional.relu(functional.linear(x, self.v)), self.w)))


class Twice(nn.Module):
    """Calls one module two times."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(torch.relu(self.b(torch.relu(self.a(x)))))


def functions_in_fp32(model: fx.GraphModule) -> list[str]:
    """By the names of their nodes, in order."""
    known = (operator.add, operator.iadd, torch.add, functional.linear)
    return [str(node.target) for node in model.graph.nodes if node.op == "call_function" and node.target in known]


@pytest.mark.parametrize("kept", ["/add", "/add_1", "/add_2"])
def test_just_the_sum_that_is_kept_is_fp32_however_it_is_written(kept: str) -> None:
    made = quantized(seeded(Sums), keep=(kept,), data=rows(32, 8), approach="static")
    integers = [n for n in made.graph.nodes if n.target is torch.ops.quantized.add]
    assert len(functions_in_fp32(made)) == 1
    assert len(integers) == 2
    place = int(kept.rpartition("_")[2]) if "_" in kept else 0
    order = [n for n in made.graph.nodes if n in integers or "add" in str(n.target)]
    assert [n in integers for n in order] == [i != place for i in range(3)]


@pytest.mark.parametrize("kept", ["/linear", "/linear_1"])
def test_functions_with_weights_are_kept_by_their_place(kept: str) -> None:
    made = quantized(seeded(Functions), keep=(kept,), data=rows(32, 8), approach="static")
    assert len(functions_in_fp32(made)) == 1
    all_int8 = quantized(seeded(Functions), data=rows(32, 8), approach="static")
    assert functions_in_fp32(all_int8) == []


@pytest.mark.parametrize(
    "approach", [a for a in APPROACHES if a != "static"]
)  # FX gives all calls the last one's scale
def test_a_module_that_is_called_twice_is_kept_as_one(approach: str) -> None:
    """Tools know modules, not calls; what is simulated must be the same."""
    data, tool = rows(64, 8), TorchQuantizer(approach=approach)  # type: ignore[arg-type]
    ready = tool.prepare(seeded(Twice), NOWHERE)
    switches = open_switches(ready, tool.quantize(ready, NOWHERE, data, tool.settings, ()))
    simulation = Simulation(switches, data[0])
    run = open_results(tool.quantize(ready, NOWHERE, data, tool.settings, ("a",)))
    real = simulation.compared([run(batch) for batch in simulation.batches]).error
    assert simulation.error_keeping(["a"]) == pytest.approx(real, rel=0.2)


# Recipes

RECIPES = [
    {"approach": "static"},
    {"approach": "static", "per_channel": False, "calibrator": "minmax", "reduce_range": False},
    {"approach": "dynamic"},
    {"approach": "dynamic", "per_channel": False},
    {"approach": "pt2e"},
    {"approach": "pt2e", "reduce_range": False},
    {"approach": "pt2e-dynamic"},
]


@pytest.mark.parametrize("settings", RECIPES, ids=lambda s: " ".join(map(str, s.values())))
@pytest.mark.parametrize("keep", [(), ("body.2", "head")], ids=["nothing kept", "two kept"])
def test_running_the_recipe_gives_the_same_model(settings: dict[str, Any], keep: Sequence[str]) -> None:
    model, images = trained("mlp", 0), samples("calibration")[:32]
    wanted = outputs(quantized(model, keep, **settings), images)
    np.testing.assert_array_equal(outputs(by_recipe(model, keep, **settings), images), wanted)


@pytest.mark.parametrize("approach", ["pt2e", "pt2e-dynamic"])
def test_a_model_made_by_the_recipe_takes_any_number_of_samples(approach: str) -> None:
    """As the tuned one does."""
    made = by_recipe(trained("mlp", 0), approach=approach)
    assert outputs(made, samples("truth")[:5]).shape == (5, 10)


MORE: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], tuple[str, ...]]] = [
    ("static", Sums, (32, 8), ("/add",)), ("static", Functions, (32, 8), ("/linear_1", "last")),
    ("static", Twice, (32, 8), ("a/2",)), ("dynamic", Recurrent, (32, 5, 8), ()),
    ("dynamic", Recurrent, (32, 5, 8), ("head",)), ("dynamic", Twice, (32, 8), ("a/2",)),
    ("pt2e", Twice, (32, 8), ("a/2",)), ("pt2e", Sums, (32, 8), ("a", "/add")),
]  # fmt: skip


@pytest.mark.parametrize(("approach", "kind", "shape", "keep"), MORE)
def test_running_the_recipe_of_other_models(
    approach: str, kind: Callable[[], nn.Module], shape: tuple[int, ...], keep: Sequence[str]
) -> None:
    data, model = rows(*shape), seeded(kind)
    wanted = results(quantized(model, keep, data, approach=approach), data)
    np.testing.assert_array_equal(results(by_recipe(model, keep, data, approach=approach), data), wanted)


@pytest.mark.parametrize("approach", ["static"])
def test_running_the_recipe_for_functions_in_blocks(approach: str) -> None:
    model, keep = trained("residual", 0), ("block0/add", "block1.b.conv")
    wanted = outputs(quantized(model, keep, approach=approach), samples("calibration")[:32])
    np.testing.assert_array_equal(
        outputs(by_recipe(model, keep, approach=approach), samples("calibration")[:32]), wanted
    )


# What goes wrong


class Branching(nn.Module):
    """Neither FX nor export can look through it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if float(x.sum()) > 0 else self.b(x)


@pytest.mark.parametrize("approach", ["static", "pt2e", "pt2e-dynamic"])
def test_a_model_that_torch_cannot_trace_is_refused_in_one_line(approach: str) -> None:
    with pytest.raises(ModelError) as error:
        quantized(seeded(Branching), data=rows(8, 8), approach=approach)
    assert "Branching: PyTorch cannot quantize it so: " in str(error.value)
    assert "\n" not in str(error.value)
    assert re.search(r"so: \S.{10,}", str(error.value))


def test_something_that_is_no_model_is_refused() -> None:
    with pytest.raises(ModelError, match=r"expected a torch\.nn\.Module"):
        TorchQuantizer().prepare("mlp", NOWHERE)


@pytest.mark.parametrize("approach", APPROACHES)
def test_nothing_to_quantize_is_no_error(approach: str) -> None:
    """The model as it is."""
    data, model = rows(8, 8), seeded(nn.Softplus)
    data = [{"input": batch["x"]} for batch in data]
    made = quantized(model, data=data, approach=approach)
    assert np.abs(results(made, data) - results(model, data)).max() < 0.02


def test_more_than_one_input_comes_by_name() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(4, 8)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.a(left) * self.b(right)

    random = np.random.default_rng(0)
    given = {"left": (16, 8), "right": (16, 4)}
    batch = {name: random.normal(size=shape).astype(np.float32) for name, shape in given.items()}
    turned = dict(reversed(batch.items()))
    model = seeded(Two)
    wanted = results(model, [batch])
    for approach in ("static", "pt2e", "dynamic"):
        for data in (batch, turned):
            made = quantized(model, data=[data], approach=approach)
            assert np.square(results(made, [data]) - wanted).mean() < 0.01 * wanted.var()


def test_copies_do_not_share_what_calibration_finds() -> None:
    tool = TorchQuantizer(approach="static")
    ready = tool.prepare(trained("mlp", 0), NOWHERE)
    bright = [{"image": 10 * batch["image"]} for batch in calibration()]
    first = tool.quantize(ready, NOWHERE, calibration(), tool.settings, ())
    before = outputs(first, samples("truth"))
    tool.quantize(ready, NOWHERE, bright, tool.settings, ())
    np.testing.assert_array_equal(outputs(first, samples("truth")), before)
    again = tool.quantize(copy.deepcopy(ready), NOWHERE, calibration(), tool.settings, ())
    np.testing.assert_array_equal(outputs(again, samples("truth")), before)


def test_the_quantizer_is_part_of_the_package() -> None:
    assert inc_tb.TorchQuantizer is TorchQuantizer
