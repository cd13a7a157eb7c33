"""Tuning PyTorch models: what it finds, what it leaves, and that all of it can be used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

import inc_tb
from inc_tb import TorchQuantizer, Tuned, tune
from inc_tb.errors import DataError, ModelError, UsageError
from inc_tb.frameworks.models import measure_size
from inc_tb.frameworks.registry import framework_of
from inc_tb.tuning.history import find_trial
from inc_tb.tuning.loop import rebuild
from inc_tb.tuning.objectives import OPS
from inc_tb.tuning.pricing import Pricing
from tests.defects import samples
from tests.torch_defects import MARKS, Case, accuracy, calibration, made, one_thread, outputs, seeded, state, trained

pytestmark = MARKS
NOWHERE = Path("/nonexistent")
CASES: Mapping[str, tuple[str, int, dict[str, Any]]] = {
    "static": ("outlier channel", 1, {}),
    "pt2e": ("outlier channel", 1, {}),
    "dynamic": ("huge weights", 2, {"per_channel": False}),
}
approaches = pytest.mark.parametrize("approach", list(CASES))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@cache
def case_for(approach: str) -> Case:
    kind, seed, _ = CASES[approach]
    return made(kind, seed, "mlp")


def quantizer(approach: str) -> TorchQuantizer:
    return TorchQuantizer(approach=approach, **CASES[approach][2])  # type: ignore[arg-type]


def tune_case(approach: str, logdir: Path, **options: Any) -> Tuned:
    """Without rewrites, which cure outlier channels with no op in fp32."""
    given = {"objectives": (), "quantizer": quantizer(approach), "evaluate": accuracy, "rewrite": False}
    options = given | options
    return tune(case_for(approach).fp32, calibration(), logdir=logdir, **options)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Tuned, Path]]:
    """One tuning for each approach, for all tests that only look at it."""

    @cache
    def once(approach: str) -> tuple[Tuned, Path]:
        folder = tmp_path_factory.mktemp(approach) / "log"
        return tune_case(approach, folder), folder

    return once


Once = Callable[[str], tuple[Tuned, Path]]


def images() -> np.ndarray[Any, Any]:
    return samples("calibration")[:32]


def again(approach: str, tuning: Tuned, data: Any = None) -> Any:
    """The best trial, quantized anew."""
    tool = quantizer(approach)
    ready = tool.prepare(case_for(approach).fp32, NOWHERE)
    return tool.quantize(ready, NOWHERE, data or calibration(), tuning.best.config, tuning.best.fallback)


# What is found


@approaches
def test_the_criterion_is_met_with_the_culprits_in_fp32(tuned: Once, approach: str) -> None:
    found, _ = tuned(approach)
    case = case_for(approach)
    wanted = case.culprits if approach == "static" else case.culprits[-1:]
    assert found.met
    assert tuple(found.best.fallback) == wanted
    assert found.best.accuracy is not None
    assert found.best.accuracy >= found.target > (found.trials[0].accuracy or 0)
    assert found.baseline == accuracy(case.fp32)
    assert found.trials[0].fallback == []
    assert len(found.trials) <= 4


def test_outlier_channels_are_rewritten_before_any_op_stays_in_fp32(tmp_path: Path) -> None:
    found = tune_case("static", tmp_path / "log", rewrite=True)
    assert found.met
    assert (found.best.fallback, len(found.trials)) == ([], 2)
    assert found.best.config["rewrites"]
    assert accuracy(found.quantized) == found.best.accuracy


@approaches
def test_the_best_model_is_a_module_with_the_accuracy_of_its_trial(tuned: Once, approach: str) -> None:
    found, _ = tuned(approach)
    assert isinstance(found.quantized, nn.Module)
    assert isinstance(found.quantized, fx.GraphModule) == (approach != "dynamic")
    assert accuracy(found.quantized) == found.best.accuracy


@approaches
def test_the_simulation_was_the_real_thing(tuned: Once, approach: str) -> None:
    found, _ = tuned(approach)
    assert set(found.comparison) == {"fp32", "simulated", "real"}
    assert found.comparison["simulated"].error == pytest.approx(found.comparison["real"].error, rel=0.1)


@approaches
def test_the_model_that_is_given_is_left_alone(approach: str, tmp_path: Path) -> None:
    model = case_for(approach).fp32
    before = state(model)
    tune_case(approach, tmp_path / "log", max_trials=1)
    assert state(model) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("approach", "network"), [("static", "residual"), ("static", "transformer"), ("pt2e", "residual")]
)
def test_networks_with_sums_and_norms(approach: str, network: str, tmp_path: Path) -> None:
    case = made("outlier channel", 3, network)
    tool = TorchQuantizer(approach=approach)  # type: ignore[arg-type]
    options: dict[str, Any] = {"objectives": (), "tolerance": 0.01, "relative": False, "logdir": tmp_path}
    found = tune(case.fp32, calibration(), distance_to(case), quantizer=tool, rewrite=False, **options)
    assert found.met
    wanted = set(case.culprits if approach == "static" else case.culprits[-1:])
    assert wanted <= set(found.best.fallback) <= set(case.culprits)  # for PT2E one of the two may be enough


def distance_to(case: Case) -> Callable[[Any], float]:
    """How near the outputs are, which tells more than the accuracy of a few hundred digits."""
    own = case.expected

    def evaluate(model: Any) -> float:
        lost = np.square(outputs(model, samples("truth")) - own).sum() / np.square(own - own.mean(0)).sum()
        return float(1 - min(lost, 1))

    return evaluate


# What is left on disk


@approaches
def test_the_stored_state_dict_loads_into_the_model_quantized_anew(tuned: Once, approach: str) -> None:
    found, folder = tuned(approach)
    assert found.model == folder / "best_model.pt"
    stored = torch.load(found.model, weights_only=True)
    fresh = again(approach, found)
    told = fresh.load_state_dict(stored)
    assert (told.missing_keys, told.unexpected_keys) == ([], [])
    np.testing.assert_array_equal(outputs(fresh, images()), outputs(found.quantized, images()))


@pytest.mark.parametrize("approach", ["static", "dynamic"])
def test_the_stored_state_dict_has_all_that_calibration_found(tuned: Once, approach: str) -> None:
    """Whoever loads it need not have the same calibration data. PT2E writes its scales into the code of the graph."""
    found, _ = tuned(approach)
    fresh = again(approach, found, [{"image": 0.3 * images()}])
    fresh.load_state_dict(torch.load(found.model, weights_only=True))
    np.testing.assert_array_equal(outputs(fresh, images()), outputs(found.quantized, images()))


@approaches
def test_the_recipe_gives_the_best_model(tuned: Once, approach: str) -> None:
    found, _ = tuned(approach)
    batches = [(torch.tensor(batch["image"]),) for batch in calibration()]
    tool = quantizer(approach)
    given: dict[str, Any] = {
        "model": tool.prepare(case_for(approach).fp32, NOWHERE),
        "example_inputs": batches[0],
        "calibration_batches": batches,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(found.recipe, given)
    np.testing.assert_array_equal(outputs(given["quantized"], images()), outputs(found.quantized, images()))


@approaches
def test_every_trial_is_a_run_that_can_be_read(tuned: Once, approach: str) -> None:
    found, folder = tuned(approach)
    for trial in found.trials:
        run = inc_tb.load(folder / trial.name)
        assert run.trial is not None
        assert (run.trial.name, run.trial.accuracy) == (trial.name, trial.accuracy)
        assert run.trial.fallback == trial.fallback
        assert run.trial.config == trial.config
        assert run.diagnosis.framework == "torch"
        assert len(run.diagnosis.ops["name"]) > 5
    first = inc_tb.load(folder / "trial-001").diagnosis
    assert first.reference == "Mlp"
    assert set(found.best.fallback) <= set(first.suggestions[0].ops)


@approaches
def test_rebuilding_a_trial_gives_the_same_state(tuned: Once, approach: str, tmp_path: Path) -> None:
    found, folder = tuned(approach)
    trial, _ = find_trial(folder, found.best.name)
    target = tmp_path / "again.pt"
    assert rebuild(case_for(approach).fp32, calibration(), trial, target) == target
    fresh = again(approach, found)
    fresh.load_state_dict(torch.load(target, weights_only=True))
    np.testing.assert_array_equal(outputs(fresh, images()), outputs(found.quantized, images()))


def test_a_trial_of_another_tool_is_not_rebuilt(tuned: Once, tmp_path: Path) -> None:
    found, _ = tuned("dynamic")
    found.best.config.pop("approach", None)
    with pytest.raises(UsageError, match="Rebuild a trial with the quantizer that made it"):
        rebuild(case_for("dynamic").fp32, calibration(), found.best, tmp_path / "again.pt")
    found.best.config["approach"] = "dynamic"


# Resumed


@approaches
def test_a_finished_tuning_is_not_repeated(tuned: Once, approach: str) -> None:
    found, folder = tuned(approach)

    def unused(_: Any) -> float:
        raise AssertionError("evaluated again")

    resumed = tune_case(approach, folder, evaluate=unused, resume=True)
    assert (resumed.met, resumed.best, resumed.evaluations) == (True, found.best, 0)
    assert [trial.name for trial in resumed.trials] == [trial.name for trial in found.trials]
    assert resumed.recipe == found.recipe


@approaches
def test_a_resumed_tuning_has_the_best_model_too(tuned: Once, approach: str) -> None:
    found, folder = tuned(approach)
    resumed = tune_case(approach, folder, resume=True)
    assert isinstance(resumed.quantized, nn.Module)
    np.testing.assert_array_equal(outputs(resumed.quantized, images()), outputs(found.quantized, images()))


@approaches
def test_a_tuning_that_was_cut_off_goes_on(tuned: Once, approach: str, tmp_path: Path) -> None:
    whole, _ = tuned(approach)
    first = tune_case(approach, tmp_path, max_trials=1)
    assert not first.met
    rest = tune_case(approach, tmp_path, resume=True)
    assert [(t.name, t.fallback, t.accuracy) for t in rest.trials] == [
        (t.name, t.fallback, t.accuracy) for t in whole.trials
    ]
    assert rest.evaluations == len(whole.trials) - 1
    np.testing.assert_array_equal(outputs(rest.quantized, images()), outputs(whole.quantized, images()))


def test_another_model_is_not_resumed(tmp_path: Path) -> None:
    tune_case("dynamic", tmp_path, max_trials=1)
    other = trained("mlp", 1)
    for model in (other, trained("transformer", 0)):
        with pytest.raises(UsageError, match="differs in model"):
            tune(model, calibration(), accuracy, quantizer=quantizer("dynamic"), logdir=tmp_path, resume=True)
    with pytest.raises(UsageError, match="differs in settings"):
        tune(case_for("dynamic").fp32, calibration(), accuracy, logdir=tmp_path, resume=True,
             quantizer=TorchQuantizer(approach="dynamic"))  # fmt: skip


# Strategies, objectives


@pytest.mark.parametrize("strategy", ["basic", "mse", "mse_v2"])
def test_other_strategies_run(strategy: str, tmp_path: Path) -> None:
    case = case_for("dynamic")
    found = tune_case("dynamic", tmp_path, strategy=strategy, evaluate=distance_to(case), tolerance=0.01)
    assert found.met
    assert "body.6" in found.best.fallback
    assert isinstance(found.quantized, nn.Module)


@pytest.mark.parametrize("strategy", ["basic", "mse", "mse_v2"])
def test_other_strategies_run_with_fx(strategy: str, tmp_path: Path) -> None:
    case = case_for("static")
    found = tune_case("static", tmp_path, strategy=strategy, evaluate=distance_to(case), tolerance=0.005)
    assert found.met
    assert set(case.culprits) <= set(found.best.fallback)


@approaches
def test_size_and_latency_are_measured(approach: str, tmp_path: Path) -> None:
    found = tune_case(approach, tmp_path, objectives=("size", "latency"))
    fp32 = measure_size(case_for(approach).fp32)
    for trial in found.trials:
        assert set(trial.objectives) == {"size_kb", "latency_ms"}
        assert trial.objectives["latency_ms"] > 0
        assert 0 < trial.objectives["size_kb"] < fp32
    assert found.trials[0].objectives["size_kb"] < found.best.objectives["size_kb"]


def test_objectives_of_the_user_get_the_module(tmp_path: Path) -> None:
    seen: list[Any] = []

    def layers(model: Any) -> float:
        seen.append(model)
        return len(list(model.modules()))

    found = tune_case("dynamic", tmp_path, objectives=[layers])
    assert len(seen) == 1 + len(found.trials)  # fp32 has them, too
    assert found.baseline_objectives["layers"] > 5
    assert all(isinstance(model, nn.Module) for model in seen)
    assert found.best.objectives["layers"] > 5


def test_the_baseline_is_that_of_the_fp32_module(tmp_path: Path) -> None:
    seen: list[Any] = []

    def evaluate(model: Any) -> float:
        seen.append(model)
        return accuracy(model)

    tune_case("dynamic", tmp_path, evaluate=evaluate)
    fp32 = case_for("dynamic").fp32
    np.testing.assert_array_equal(outputs(seen[0], images()), outputs(fp32, images()))
    assert all(not model.training for model in seen)


# What goes wrong


class Branching(nn.Module):
    """FX cannot trace it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if float(x.sum()) > 0 else self.b(x)


def rows(*shape: int) -> list[dict[str, Any]]:
    return [{"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}]


@pytest.mark.parametrize("strategy", ["probe", "basic", "mse", "mse_v2"])
def test_a_model_that_cannot_be_traced_has_failed_trials_and_an_end(strategy: str, tmp_path: Path) -> None:
    tool = TorchQuantizer(approach="static")
    found = tune(seeded(Branching), rows(8, 8), lambda _: 0.5, quantizer=tool, logdir=tmp_path, strategy=strategy)
    assert not found.met
    assert found.trials
    for trial in found.trials:
        assert trial.accuracy is None
        (note,) = trial.notes
        assert "PyTorch cannot quantize it so: " in note
        assert "\n" not in note
        assert inc_tb.load(tmp_path / trial.name).trial == trial
    assert "no accuracy" in found.reason
    assert "\n" not in found.reason
    assert not found.model.exists()
    assert found.quantized is None


class Wrapped(TorchQuantizer):
    """Makes a model that fails when it runs, for some sets; torch does that, too."""

    def __init__(self, fails: Callable[[Sequence[str]], bool], **settings: Any) -> None:
        super().__init__(**settings)
        self.fails = fails

    def quantize(
        self, model: nn.Module, target: Path, batches: Iterable[Any], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> nn.Module:
        return Broken() if self.fails(keep) else super().quantize(model, target, batches, settings, keep)


class Broken(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        raise RuntimeError("mat1 and mat2 must have the same dtype, but got QUInt8 and Float")


@pytest.mark.parametrize("strategy", ["probe", "basic", "mse", "mse_v2"])
def test_a_candidate_that_does_not_run_is_a_failed_trial(strategy: str, tmp_path: Path) -> None:
    tool = Wrapped(lambda keep: "body.6" in keep and len(keep) < 3, **quantizer("dynamic").settings)
    case = case_for("dynamic")
    found = tune_case("dynamic", tmp_path, quantizer=tool, strategy=strategy, evaluate=distance_to(case))
    failed = [trial for trial in found.trials if trial.accuracy is None]
    assert failed or strategy == "mse_v2"  # which does not try what does not run
    for trial in failed:
        assert "same dtype" in " ".join(trial.notes)
        assert "\n" not in " ".join(trial.notes)
    assert found.met


class Normed(nn.Module):
    """FX makes integers of the norm even if it is told not to, and gives them to what is kept behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 5), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.a(x))
        return self.b(x) + self.c(x)


def test_what_fx_cannot_keep_does_not_end_a_tuning(tmp_path: Path) -> None:
    model, data = seeded(Normed), rows(32, 16)
    own = model(torch.tensor(data[0]["x"])).detach()

    def evaluate(candidate: Any) -> float:
        return 1 - float((candidate(torch.tensor(data[0]["x"])).detach() - own).square().mean())

    found = tune(
        model, data, evaluate, quantizer=TorchQuantizer(approach="static"), strategy="basic", tolerance=1e-7,
        logdir=tmp_path, objectives=(),
    )  # fmt: skip
    assert len(found.trials) > 8


class Stubborn(TorchQuantizer):
    """A tool that quantizes `b` whatever it is told."""

    def quantize(self, model: Any, target: Path, calibration: Any, settings: Any, keep: Any) -> Any:
        return super().quantize(model, target, calibration, settings, [name for name in keep if name != "b"])


@pytest.mark.parametrize("tool", [TorchQuantizer, Stubborn])
def test_that_a_tool_rounds_what_it_was_told_not_to_is_said(tool: type[TorchQuantizer], tmp_path: Path) -> None:
    model, data = seeded(Normed), rows(32, 16)
    own = model(torch.tensor(data[0]["x"])).detach()

    def evaluate(candidate: Any) -> float:
        return 1 - float((candidate(torch.tensor(data[0]["x"])).detach() - own).square().mean())

    found = tune(
        model, data, evaluate, quantizer=tool(approach="static"), tolerance=1e-9, logdir=tmp_path, objectives=()
    )
    wrong = [trial for trial in found.trials if trial.left_by_tool is not None]
    if tool is TorchQuantizer:
        assert found.met
        assert not wrong
        return
    assert not found.met
    assert wrong
    assert {"a", "norm", "b", "c"} <= set(wrong[0].fallback)
    assert 1e-5 < (wrong[0].left_by_tool or 0) < 0.1
    assert any("The tool is at fault, not an op of the model" in note for note in wrong[0].notes)
    assert found.reason.endswith(f"The tool is at fault, not an op of the model ({wrong[0].name})")


def test_what_evaluate_raises_is_told(tmp_path: Path) -> None:
    def broken(_: Any) -> float:
        raise ValueError("no labels")

    with pytest.raises(UsageError, match="evaluate failed on Mlp: ValueError: no labels") as error:
        tune_case("dynamic", tmp_path, evaluate=broken)
    assert "\n" not in str(error.value)


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    done = quantizer("dynamic").quantize(trained("mlp", 0), NOWHERE, [], quantizer("dynamic").settings, ())
    with pytest.raises(ModelError, match="is quantized already"):
        tune(done, calibration(), accuracy, logdir=tmp_path / "a")
    with pytest.raises(DataError, match="no samples"):
        tune(trained("mlp", 0), [], accuracy, logdir=tmp_path / "b")
    with pytest.raises(ModelError, match="TorchScript"):
        tune(torch.jit.script(trained("mlp", 0)), calibration(), accuracy, logdir=tmp_path / "c")


def test_multiplications_of_layers_are_counted_for_one_sample() -> None:
    """x is 4 x 6 x 6, behind the convolution 8 x 4 x 4, behind the linear layer 5."""
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)).eval()
    x = np.random.default_rng(0).normal(size=(6, 4, 6, 6)).astype(np.float32)
    expected = {"0": 8 * 4 * 4 * 4 * 9, "3": 128 * 5}
    found = framework_of(model).count_macs(model, {"input": x})
    assert {name: macs.number for name, macs in found.items()} == expected
    assert not any(macs.is_integer for macs in found.values())
    tool = inc_tb.TorchQuantizer(approach="static")
    int8 = tool.quantize(tool.prepare(model, Path()), Path(), [{"input": x}], tool.settings, ["3"])
    found = framework_of(int8).count_macs(int8, {"input": x})
    assert {name: macs.number for name, macs in found.items()} == expected
    assert {name for name, macs in found.items() if macs.is_integer} == {"0"}


def test_what_a_model_multiplies_outside_of_layers_is_not_known(tmp_path: Path) -> None:
    """As in the graphs of PT2E."""

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T

    layer = nn.Sequential(nn.Linear(4, 2))
    pricing = Pricing(layer, {"input": np.ones((1, 4), np.float32)}, OPS, tmp_path / "prices.jsonl")
    assert pricing.int8_share(layer) == 0
    assert pricing.int8_share(Written()) is None
