"""Tuning: strategies, the criterion, when it stops, what every trial leaves, and cures that cost less than fp32."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

import inc_tb
from inc_tb import OnnxRuntimeQuantizer, Trial, Tuned, tune
from inc_tb.demo import load_digits
from inc_tb.errors import DataError, IncTbError, ModelError, UsageError
from inc_tb.store.eventfile import event_files, read_events
from tests.digits import DATA, digits
from tests.waiting import Clock

HARD, CLEAN = DATA / "hard.onnx", DATA / "clean.onnx"
CULPRITS = ["/conv1/Conv", "/conv2/Conv"]
PLENTY_S = 36_000
SETTINGS: Mapping[str, Any] = {"per_channel": True, "reduce_range": True}
"""With 7 bits the sums of no processor saturate: the same accuracies everywhere."""


@cache
def held_out() -> tuple[np.ndarray, np.ndarray]:
    images, labels, is_held_out = load_digits()
    return images[is_held_out], labels[is_held_out]


@cache
def calibration() -> np.ndarray:
    images, _, is_held_out = load_digits()
    return images[~is_held_out][:64]


def results(model: Path | str, images: np.ndarray, name: str = "input") -> np.ndarray:
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {name: images})[0]
    return found


def accuracy(path: str) -> float:
    images, labels = held_out()
    return float((results(path, images).argmax(axis=1) == labels).mean())


def tune_hard(logdir: Path, evaluate: Callable[[str], float] = accuracy, **options: Any) -> Tuned:
    """Without a rewrite, which would cure it at once."""
    options = {"objectives": (), "quantizer": OnnxRuntimeQuantizer(**SETTINGS), "rewrite": False, **options}
    return tune(HARD, calibration(), evaluate, logdir=logdir, **options)


# Quantizers to plug in


class Wrapped:
    """Does what ONNX Runtime's does, and can be told to do something else."""

    def __init__(self, **settings: Any) -> None:
        self.tool = OnnxRuntimeQuantizer(**settings)
        self.settings: Mapping[str, Any] = self.tool.settings

    def prepare(self, model: Any, folder: Path) -> Path:
        return self.tool.prepare(model, folder)

    def quantize(
        self, model: Path, target: Path, batches: Iterable[Any], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> None:
        self.tool.quantize(model, target, batches, settings, keep)

    def recipe(self, settings: Mapping[str, Any], keep: Sequence[str]) -> str:
        return self.tool.recipe(settings, keep)

    def variants(self) -> Sequence[Mapping[str, Any]]:
        return self.tool.variants()

    def cures(self, *given: Any) -> Mapping[str, Mapping[str, Any]]:
        return self.tool.cures(*given)


class Failing(Wrapped):
    """Some settings are too much for it."""

    def __init__(
        self,
        fails: Callable[[Mapping[str, Any], Sequence[str]], bool],
        error: type[Exception] = ModelError,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.fails, self.error = fails, error

    def quantize(
        self, model: Path, target: Path, batches: Iterable[Any], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> None:
        if self.fails(settings, keep):
            raise self.error("too much for this tool")
        super().quantize(model, target, batches, settings, keep)


class Copying:
    """Quantizes nothing: it writes its settings into a copy, from which `scored` reads what they are worth."""

    def __init__(self, ways: int = 4) -> None:
        self.settings: Mapping[str, Any] = {"way": 0}
        self.ways = ways
        self.made: list[int] = []

    def prepare(self, model: Any, folder: Path) -> Path:
        return Path(shutil.copy(model, folder / "prepared.onnx"))

    def quantize(
        self, model: Path, target: Path, batches: Iterable[Any], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> None:
        self.made.append(settings["way"])
        proto = onnx.load(model)
        helper.set_model_props(proto, {"way": str(settings["way"])})
        onnx.save(proto, target)

    def recipe(self, settings: Mapping[str, Any], keep: Sequence[str]) -> str:
        return f"way {settings['way']}"

    def variants(self) -> Sequence[Mapping[str, Any]]:
        return [{"way": way} for way in range(1, self.ways)]

    def cures(self, *_: Any) -> Mapping[str, Mapping[str, Any]]:
        return {}


def way_of(path: str | Path) -> int:
    """Of a model that Copying has made; -1 is fp32."""
    props = {p.key: p.value for p in onnx.load(path).metadata_props}
    return int(props.get("way", -1))


def scored(*scores: float, fp32: float = 1.0, before: Callable[[], object] = lambda: None) -> Callable[[str], float]:
    def evaluate(path: str) -> float:
        before()
        way = way_of(path)
        return fp32 if way < 0 else scores[way]

    return evaluate


def tune_copies(logdir: Path, evaluate: Callable[[str], float], *, ways: int = 4, **options: Any) -> Tuned:
    """Milliseconds a trial; as many trials as there are ways, unless it stops before."""
    options = {
        "strategy": "basic", "objectives": (), "diagnosis_samples": 0, "max_trials": ways, "quantizer": Copying(ways),
        **options,
    }  # fmt: skip
    return tune(CLEAN, {"input": digits(2)}, evaluate, logdir=logdir, **options)


# The call


def test_the_call_is_the_one_that_was_agreed() -> None:
    found = {n: p.default for n, p in inspect.signature(tune).parameters.items()}
    assert list(found)[:3] == ["model", "calibration", "evaluate"]
    agreed = {
        "tolerance": 0.01, "relative": True, "higher_is_better": True, "strategy": "probe", "max_trials": 100,
        "timeout": 0, "logdir": "nc_workspace", "resume": False,
    }  # fmt: skip
    assert agreed.items() <= found.items()
    assert {"objectives", "quantizer"} <= set(found)
    assert all(p.kind is p.KEYWORD_ONLY for n, p in list(inspect.signature(tune).parameters.items())[3:])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tolerance": -0.1}, "tolerance=-0.1"),
        ({"max_trials": 0}, "max_trials=0"),
        ({"timeout": -1}, "timeout=-1"),
        ({"strategy": "bayes"}, "probe, auto, basic, bayesian"),
        ({"objectives": ("speed",)}, "memory or file.py:function"),
    ],
    ids=lambda value: str(value),
)
def test_wrong_arguments_leave_nothing(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tune_hard(tmp_path / "log", **options)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("value", [None, "good", float("nan"), float("inf")])
def test_what_evaluate_returns_must_be_a_number(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UsageError, match="finite number"):
        tune_copies(tmp_path, lambda path: value)


def test_an_evaluate_that_raises_is_named(tmp_path: Path) -> None:
    def evaluate(path: str) -> float:
        raise KeyError("labels")

    with pytest.raises(UsageError, match=r"evaluate failed on clean\.onnx: KeyError: 'labels'"):
        tune_copies(tmp_path, evaluate)


def test_a_mended_evaluate_can_go_where_the_broken_one_failed(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        tune_copies(tmp_path, lambda path: float("nan"))
    assert tune_copies(tmp_path, scored(1, 1, 1, 1)).met


def test_data_that_do_not_fit_the_model_are_named_before_any_trial(tmp_path: Path) -> None:
    wrong: list[Any] = [{"x": digits(4)}, digits(4)[:, :, :7], [(digits(4), digits(4))], [], tmp_path / "none.npz"]
    for data in wrong:
        with pytest.raises(IncTbError):
            tune(HARD, data, accuracy, logdir=tmp_path / "log")
        assert not (tmp_path / "log").exists(), data


@pytest.mark.parametrize("form", ["file", "folder", "mapping", "array", "batches", "generator", "function"])
def test_calibration_data_in_every_form_give_the_same_ranges(tmp_path: Path, form: str) -> None:
    images = digits(20)
    np.savez(tmp_path / "data.npz", input=images)
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "input.npy", images)
    code = (
        f"import numpy as np\ndef batches():\n    yield from np.array_split(np.load({str(tmp_path / 'x.npy')!r}), 3)\n"
    )
    np.save(tmp_path / "x.npy", images)
    (tmp_path / "calibration_batches.py").write_text(code)
    forms: dict[str, Any] = {
        "file": tmp_path / "data.npz", "folder": str(tmp_path / "folder"), "mapping": {"input": images},
        "array": images, "batches": [{"input": part} for part in np.array_split(images, 3)],
        "generator": ((part,) for part in np.array_split(images, 3)),
        "function": f"{tmp_path / 'calibration_batches.py'}:batches",
    }  # fmt: skip
    found = tune(CLEAN, forms[form], accuracy, objectives=(), diagnosis_samples=0, logdir=tmp_path / "log")
    steps = {
        t.name: float(numpy_helper.to_array(t))
        for t in onnx.load(found.model).graph.initializer
        if t.name == "input_scale"
    }
    assert found.met
    assert steps["input_scale"] == pytest.approx((images.max() - images.min()) / 255)


def test_a_model_as_an_object(tmp_path: Path) -> None:
    found = tune(onnx.load(CLEAN), calibration(), accuracy, objectives=(), logdir=tmp_path)
    assert found.met
    assert found.best.fallback == []


# Strategies


@pytest.fixture(scope="module")
def by_strategy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tuned]:
    """Each tunes the hard model once for all tests."""

    @cache
    def tuned(strategy: str) -> Tuned:
        return tune_hard(tmp_path_factory.mktemp(strategy), strategy=strategy)

    return tuned


def test_probe_finds_exactly_the_two_culprits_in_at_most_three_trials(by_strategy: Callable[[str], Tuned]) -> None:
    found = by_strategy("probe")
    assert found.met
    assert found.best.fallback == CULPRITS
    assert len(found.trials) <= 3
    assert found.trials[0].fallback == []
    assert found.trials[0].accuracy is not None
    assert found.trials[0].accuracy < found.target <= accuracy(str(found.model))
    assert found.target == pytest.approx(0.99 * found.baseline)
    assert found.evaluations == len(found.trials) + 1  # and fp32
    assert found.simulations > len(found.trials)
    assert "first trial that meets" in found.reason
    assert set(found.comparison) == {"fp32", "simulated", "real"}
    assert found.comparison["real"].error == pytest.approx(found.comparison["simulated"].error, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["basic", "mse", "mse_v2"])
def test_the_others_need_more_trials_or_more_ops(by_strategy: Callable[[str], Tuned], strategy: str) -> None:
    found, best = by_strategy(strategy), by_strategy("probe")
    assert found.met
    assert len(found.trials) > len(best.trials)
    assert set(found.best.fallback) >= set(CULPRITS)
    assert (len(found.best.fallback) > len(CULPRITS)) == (strategy != "mse_v2")  # which looks at the output


def test_what_was_proved_becomes_the_first_suggestion_of_the_first_trial(by_strategy: Callable[[str], Tuned]) -> None:
    found = by_strategy("probe")
    run = inc_tb.load(found.model.parent / "trial-001")
    assert len(run.diagnoses) == 2
    assert run.diagnosis.origin is not None
    assert run.diagnosis.origin.seed == 0
    first = run.suggestions[0]
    assert first.ops == CULPRITS
    assert (first.effects[0].basis, first.effects[0].kind) == ("measured", "recovers")
    assert first.effects[0].value > 0.9
    assert "proves it" in first.effects[0].how


def singles(trials: Sequence[Trial]) -> list[str]:
    return [trial.fallback[0] for trial in trials if len(trial.fallback) == 1]


@pytest.mark.slow
def test_basic_tries_settings_then_single_ops_then_the_best_together(by_strategy: Callable[[str], Tuned]) -> None:
    trials = by_strategy("basic").trials
    tool = OnnxRuntimeQuantizer(**SETTINGS)
    ways = [tool.settings, *tool.variants()]
    assert [trial.config for trial in trials[: len(ways)]] == ways
    assert all(trial.fallback == [] for trial in trials[: len(ways)])
    best = max(trials[: len(ways)], key=lambda trial: trial.accuracy or 0)
    rest = trials[len(ways) :]
    assert all(trial.config == best.config for trial in rest)
    alone = singles(rest)
    in_graph = [node.name for node in onnx.load(HARD).graph.node]
    assert alone == [name for name in in_graph if name in alone]
    assert set(CULPRITS) <= set(alone)
    by_accuracy = sorted(rest[: len(alone)], key=lambda trial: (-(trial.accuracy or 0), trial.fallback))
    order = [trial.fallback[0] for trial in by_accuracy]
    together = rest[len(alone) :]
    assert [trial.fallback for trial in together] == [order[:count] for count in range(2, 2 + len(together))]


@pytest.mark.slow
def test_mse_goes_in_the_order_of_neural_compressors_mse(by_strategy: Callable[[str], Tuned]) -> None:
    found = by_strategy("mse")
    ops = inc_tb.load(found.model.parent / "trial-001").ops
    rows = [i for i in range(ops.count) if not np.isnan(ops["a_inc_mse"][i])]
    expected = [str(ops["name"][i]) for i in sorted(rows, key=lambda i: -ops["a_inc_mse"][i])]
    alone = singles(found.trials)
    assert [trial.config for trial in found.trials[1:5]] == list(OnnxRuntimeQuantizer(**SETTINGS).variants())
    assert len(alone) > 5
    assert alone == [name for name in expected if name in alone]
    together = [trial.fallback for trial in found.trials if len(trial.fallback) > 1]
    assert together == [alone[:count] for count in range(2, 2 + len(together))]


@pytest.mark.slow
def test_mse_v2_adds_the_op_that_brings_the_output_closest(by_strategy: Callable[[str], Tuned], tmp_path: Path) -> None:
    trials = by_strategy("mse_v2").trials
    assert trials[0].fallback == []
    for before, after in itertools.pairwise(trials):
        assert after.fallback[:-1] == before.fallback
        assert after.config == trials[0].config
    tool = OnnxRuntimeQuantizer(**SETTINGS)
    ready = tool.prepare(HARD, tmp_path)
    images = calibration()[:16]
    exact = results(HARD, images)

    def error(keep: Sequence[str]) -> float:
        tool.quantize(ready, tmp_path / "int8.onnx", [{"input": calibration()}], tool.settings, keep)
        return float(np.square(results(tmp_path / "int8.onnx", images) - exact).sum())

    units = trials[-1].fallback + [op for op in ("/conv1/Conv", "/conv2/Conv") if op not in trials[-1].fallback]
    for count in (1, 2):
        kept = trials[count - 1].fallback
        errors = {op: error([*kept, op]) for op in units if op not in kept}
        assert errors[trials[count].fallback[-1]] == pytest.approx(min(errors.values()))


@pytest.mark.parametrize(
    "settings", [{"format": "QOperator", "per_channel": True}, {"activation_type": "uint8", "per_channel": True}, {}],
    ids=lambda settings: str(settings),
)  # fmt: skip
def test_probe_in_other_formats(tmp_path: Path, settings: dict[str, Any]) -> None:
    found = tune_hard(tmp_path, quantizer=OnnxRuntimeQuantizer(**settings))
    assert found.met
    assert found.best.fallback == CULPRITS
    assert len(found.trials) <= 3


def test_probe_of_dynamic_quantization(tmp_path: Path) -> None:
    found = tune_hard(tmp_path, quantizer=OnnxRuntimeQuantizer(approach="dynamic"))
    assert found.met
    assert set(found.best.fallback) <= {*CULPRITS, "/dw/Conv"}
    assert len(found.trials) <= 4


def test_a_healthy_model_takes_one_trial_and_no_simulation(tmp_path: Path) -> None:
    found = tune(CLEAN, calibration(), accuracy, objectives=(), logdir=tmp_path)
    assert (found.met, len(found.trials), found.best.fallback, found.simulations) == (True, 1, [], 0)


def test_the_quantizer_can_be_used_for_another_tuning(tmp_path: Path) -> None:
    tool = OnnxRuntimeQuantizer(**SETTINGS)
    tune(CLEAN, 0.1 * calibration(), accuracy, objectives=(), max_trials=1, quantizer=tool, logdir=tmp_path / "dark")
    found = tune(CLEAN, calibration(), accuracy, objectives=(), quantizer=tool, logdir=tmp_path / "right")
    assert found.trials[0].accuracy == pytest.approx(found.baseline, abs=0.01)


# Criterion and exit policy


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({"tolerance": 0.1}, 0.72),
        ({"tolerance": 0.1, "relative": False}, 0.7),
        ({"tolerance": 0.1, "higher_is_better": False}, 0.88),
        ({"tolerance": 0.1, "relative": False, "higher_is_better": False}, 0.9),
        ({"tolerance": 0}, 0.8),
    ],
    ids=lambda value: str(value),
)
def test_the_criterion(tmp_path: Path, options: dict[str, Any], target: float) -> None:
    worse = -1e-6 if options.get("higher_is_better", True) else 1e-6
    found = tune_copies(tmp_path / "met", scored(target + 2 * worse, target - worse, 0, 0, fp32=0.8), **options)
    assert found.baseline == 0.8
    assert found.target == pytest.approx(target)
    assert (found.met, found.best.name, len(found.trials)) == (True, "trial-002", 2)
    assert found.best.lower_is_better is not options.get("higher_is_better", True)
    scores = [target + times * worse for times in (4, 2, 3, 5)]
    missed = tune_copies(tmp_path / "missed", scored(*scores, fp32=0.8), **options)
    assert (missed.met, missed.best.name, len(missed.trials)) == (False, "trial-002", 4)
    assert ("at least" if options.get("higher_is_better", True) else "at most") in missed.reason


def test_a_relative_criterion_for_negative_numbers(tmp_path: Path) -> None:
    """Log-likelihoods, say: 10 % of -2 is still a loss of 0.2."""
    found = tune_copies(tmp_path, scored(-2.3, -2.1, fp32=-2.0), tolerance=0.1, ways=2)
    assert found.target == pytest.approx(-2.2)
    assert found.best.name == "trial-002"


def test_an_error_rate(tmp_path: Path) -> None:
    found = tune_hard(tmp_path, lambda path: 1 - accuracy(path), higher_is_better=False, relative=False)
    assert found.met
    assert found.best.fallback == CULPRITS
    assert found.target == pytest.approx(found.baseline + 0.01)
    assert found.best.drop == pytest.approx(0, abs=0.01)
    assert inc_tb.load(tmp_path / "trial-001").trial.lower_is_better


def test_without_a_timeout_the_first_that_meets_it_ends_the_search(tmp_path: Path) -> None:
    found = tune_copies(tmp_path, scored(0.5, 0.995, 1, 1))
    assert [trial.name for trial in found.trials] == ["trial-001", "trial-002"]


def test_with_a_timeout_the_rest_is_tried_and_the_best_kept(tmp_path: Path) -> None:
    found = tune_copies(tmp_path, scored(0.5, 0.995, 1, 0.99), timeout=PLENTY_S)
    assert len(found.trials) == 4
    assert (found.met, found.best.name) == (True, "trial-003")
    assert way_of(found.model) == 2


def test_the_timeout_ends_the_search(tmp_path: Path, clock: Clock) -> None:
    evaluate = scored(*[0.995] * 50, before=lambda: clock.tick(1))
    found = tune_copies(tmp_path, evaluate, ways=50, timeout=5.5)
    assert len(found.trials) == 5  # and fp32
    assert found.met
    assert found.wall_s == 6
    assert found.reason == "the 5.5 s are used up"


def test_the_time_left_is_used_for_fewer_ops(tmp_path: Path) -> None:
    """The first set that is good enough has three ops, the smallest two."""
    found = tune_hard(tmp_path, timeout=PLENTY_S)
    assert found.met
    assert found.best.fallback == CULPRITS
    assert all(len(t.fallback) >= 2 or not (t.accuracy or 0) >= found.target for t in found.trials)


def test_no_larger_set_is_tried_once_nothing_in_fp32_is_enough(tmp_path: Path) -> None:
    found = tune_hard(tmp_path, tolerance=0.2, timeout=PLENTY_S)
    assert (found.met, found.best.fallback) == (True, [])
    assert all(trial.fallback == [] for trial in found.trials)


def test_max_trials(tmp_path: Path) -> None:
    found = tune_copies(tmp_path, scored(0.1, 0.3, 0.2, 1), max_trials=3)
    assert (found.met, found.best.name, len(found.trials)) == (False, "trial-002", 3)
    assert found.reason == "the best has 0.3, at least 0.99 is wanted; all 3 trials are used up"
    assert way_of(found.model) == 1


# It never ends with nothing


def test_a_target_that_cannot_be_met_ends_with_the_best_and_the_reason(tmp_path: Path) -> None:
    found = tune_hard(tmp_path, lambda path: accuracy(path) - (0.5 if "hard" not in path else 0))
    assert not found.met
    assert found.best.fallback == CULPRITS
    assert len(found.trials[-1].fallback) > len(found.best.fallback)  # everything in fp32 was tried as well
    assert "the best has 0.495" in found.reason
    assert "nothing more to try" in found.reason
    assert accuracy(str(found.model)) == pytest.approx((found.best.accuracy or 0) + 0.5)
    assert found.recipe.endswith(OnnxRuntimeQuantizer().recipe(found.best.config, CULPRITS))


@pytest.mark.parametrize("strategy", ["probe", "basic"])
def test_ctrl_c_keeps_what_was_found(tmp_path: Path, strategy: str) -> None:
    calls = itertools.count(1)

    def evaluate(path: str) -> float:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return accuracy(path)

    found = tune_hard(tmp_path, evaluate, strategy=strategy)
    assert not found.met
    assert [trial.name for trial in found.trials] == ["trial-001"]
    assert found.best.name == "trial-001"
    assert found.model.exists()
    assert "interrupted" in found.reason
    again = tune_hard(tmp_path, strategy=strategy, resume=True, max_trials=2)
    assert [trial.name for trial in again.trials] == ["trial-001", "trial-002"]


def test_ctrl_c_before_the_first_trial_is_passed_on(tmp_path: Path) -> None:
    def evaluate(path: str) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune_copies(tmp_path, evaluate)


FAILURES: Mapping[str, tuple[str, Callable[[Mapping[str, Any], Sequence[str]], bool]]] = {
    "a cure": ("probe", lambda settings, keep: bool(settings["int16_tensors"]) or settings["calibrator"] != "minmax"),
    "what is kept": ("probe", lambda settings, keep: "/conv1/Conv" in keep),
    "a variant": ("basic", lambda settings, keep: settings["symmetric"]),
    "a single op": ("basic", lambda settings, keep: "/Add" in keep),
    "a single op of mse_v2": ("mse_v2", lambda settings, keep: "/Add" in keep),
    "the first settings": ("basic", lambda settings, keep: not settings["per_channel"]),
    "the first settings of probe": ("probe", lambda settings, keep: not settings["per_channel"]),
    "everything": ("basic", lambda settings, keep: True),
    "everything in probe": ("probe", lambda settings, keep: True),
}


@pytest.mark.parametrize(("strategy", "fails"), FAILURES.values(), ids=FAILURES)
def test_settings_for_which_the_quantizer_fails_are_no_end(
    tmp_path: Path, strategy: str, fails: Callable[[Mapping[str, Any], Sequence[str]], bool]
) -> None:
    """Whatever it raises: a tool of others knows nothing of our errors."""
    error = ModelError if strategy == "mse_v2" else RuntimeError
    tool = Failing(fails, error)
    found = tune_hard(tmp_path, strategy=strategy, quantizer=tool, max_trials=8)
    assert found.trials
    failed = [trial for trial in found.trials if trial.accuracy is None]
    for trial in failed:
        assert "too much for this tool" in " ".join(trial.notes)
        assert inc_tb.load(tmp_path / trial.name).trial.notes == trial.notes
    if len(failed) < len(found.trials):
        assert found.best.accuracy == max(trial.accuracy or 0 for trial in found.trials)
        assert found.model.exists()
        assert accuracy(str(found.model)) == found.best.accuracy
    else:
        assert "no accuracy" in found.reason


def test_a_cure_that_the_quantizer_cannot_do_leaves_fp32(tmp_path: Path) -> None:
    found = tune_hard(tmp_path, quantizer=Failing(FAILURES["a cure"][1], per_channel=True))
    assert (found.met, found.best.fallback) == (True, CULPRITS)


def test_a_run_of_the_user_is_not_deleted(tmp_path: Path) -> None:
    """`inc-tb diagnose --run trial-001` may have been there before, in the same default folder."""
    mine = tmp_path / "trial-001"
    with inc_tb.SummaryWriter(mine) as writer:
        writer.add_trial(Trial("mine", 0.5))
    before = {path.name: path.read_bytes() for path in mine.iterdir()}
    with contextlib.suppress(UsageError):  # to refuse is fine, too
        tune_copies(tmp_path, scored(1, 1, 1, 1))
    assert {path.name: path.read_bytes() for path in mine.iterdir() if path.name in before} == before


# What a trial leaves


def scalars(run: Path) -> dict[str, float]:
    events = [event for path in event_files(run) for event in read_events(path)]
    return {
        value.tag: float(tensor_util.make_ndarray(value.tensor))
        for event in events
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "scalars"
    }


def hparams(run: Path) -> list[plugin_data_pb2.HParamsPluginData]:
    events = [event for path in event_files(run) for event in read_events(path)]
    return [
        plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in events
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    ]


def test_every_trial_is_a_run_with_all_that_is_known_about_it(by_strategy: Callable[[str], Tuned]) -> None:
    found = by_strategy("probe")
    folder = found.model.parent
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        "fp32", ".simulations", *(trial.name for trial in found.trials),
    }  # fmt: skip
    for trial in found.trials:
        run = inc_tb.load(folder / trial.name)
        assert run.trial == trial
        assert trial.config == OnnxRuntimeQuantizer(**SETTINGS).settings
        assert (trial.baseline, trial.target) == (found.baseline, found.target)
        assert trial.wall_s is not None
        assert 0 < trial.wall_s < found.wall_s
        assert run.diagnosis.samples == 8
        assert run.diagnosis.reference == "hard.onnx"
        assert ("2 ops in fp32" in run.diagnosis.quantized) == (trial.fallback == CULPRITS)
        logged = scalars(folder / trial.name)
        assert logged["trial/accuracy"] == pytest.approx(trial.accuracy)
        assert logged["trial/fallback_ops"] == len(trial.fallback)
        assert logged["trial/wall_s"] == pytest.approx(trial.wall_s)
    first, last = (inc_tb.load(folder / found.trials[i].name) for i in (0, -1))
    assert "/conv2/Conv" in {op for s in first.suggestions for op in s.ops}
    assert last.suggestions == []


def test_latency_and_size_are_logged_as_scalars_and_hparams(tmp_path: Path) -> None:
    found = tune(CLEAN, calibration(), accuracy, logdir=tmp_path)
    assert set(found.best.objectives) == {"latency_ms", "size_kb"}
    assert found.best.objectives["size_kb"] == pytest.approx(found.model.stat().st_size / 1000)
    assert found.best.objectives["latency_ms"] > 0
    logged = scalars(tmp_path / "trial-001")
    assert logged["trial/size_kb"] == pytest.approx(found.best.objectives["size_kb"])
    assert logged["trial/latency_ms"] == pytest.approx(found.best.objectives["latency_ms"])
    stored = hparams(tmp_path / "trial-001")
    metrics = {info.name.tag for data in stored for info in data.experiment.metric_infos}
    assert {"trial/latency_ms", "trial/size_kb", "trial/accuracy"} <= metrics
    settings = {name for data in stored for name in data.session_start_info.hparams}
    assert {"per_channel", "calibrator", "format", "fallback"} <= settings


def test_any_function_can_be_an_objective(tmp_path: Path) -> None:
    def ops(path: str) -> int:
        return len(onnx.load(path).graph.node)

    (tmp_path / "count_weights.py").write_text(
        "import onnx\ndef weights(path):\n    return len(onnx.load(path).graph.initializer)\n"
    )
    count = len(onnx.load(CLEAN).graph.node)
    objectives = [ops, f"{tmp_path / 'count_weights.py'}:weights", "size"]
    found = tune_copies(tmp_path / "a", scored(1, 1, 1, 1), objectives=objectives)
    assert list(found.best.objectives) == ["ops", "weights", "size_kb"]
    assert found.best.objectives["ops"] == count
    assert scalars(tmp_path / "a" / "trial-001")["trial/ops"] == count
    named = tune_copies(tmp_path / "b", scored(1, 1, 1, 1), objectives={"nodes": ops, "twice": lambda p: 2 * ops(p)})
    assert named.best.objectives == {"nodes": count, "twice": 2 * count}
    assert {i.name.tag for data in hparams(tmp_path / "b" / "trial-001") for i in data.experiment.metric_infos} >= {
        "trial/nodes", "trial/twice",
    }  # fmt: skip


def test_an_objective_that_is_no_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="power returned 'much'"):
        tune_copies(tmp_path, scored(1, 1, 1, 1), objectives={"power": lambda path: "much"})


def test_an_objective_that_raises_is_named(tmp_path: Path) -> None:
    def power(path: str) -> float:
        raise OSError("no meter")

    with pytest.raises(UsageError, match=r"power.*no meter"):
        tune_copies(tmp_path, scored(1, 1, 1, 1), objectives=[power])


def test_progress_is_told_about_every_trial(tmp_path: Path) -> None:
    told: list[tuple[str, bool]] = []
    tune_copies(tmp_path, scored(0.2, 0.1, 0.3, 1), progress=lambda trial, is_best: told.append((trial.name, is_best)))
    assert told == [("trial-001", True), ("trial-002", False), ("trial-003", True), ("trial-004", True)]


def test_the_probing_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    tune_hard(tmp_path, probing=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert all(done <= total for done, total in told)


def test_the_json_form(by_strategy: Callable[[str], Tuned]) -> None:
    found = msgspec.json.decode(msgspec.json.encode(by_strategy("probe").to_json()))
    assert {"baseline", "target", "met", "best", "trials"} <= set(found)
    assert {"trial", "accuracy", "fallback"} <= set(found["best"])
    assert all({"trial", "accuracy", "fallback", "objectives", "wall_s"} <= set(trial) for trial in found["trials"])
    assert found["best"]["trial"] == found["trials"][-1]["trial"]


def test_nothing_is_left_in_the_working_directory_or_in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cwd", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    tune(CLEAN, calibration(), accuracy, logdir=tmp_path / "log")
    with pytest.raises(DataError):
        tune(CLEAN, [], accuracy, logdir=tmp_path / "other")
    assert list((tmp_path / "cwd").iterdir()) == []
    assert list((tmp_path / "tmp").glob(".inc-tb-tune-*")) == []


# Cures that cost less than fp32


def save(path: Path, nodes: Iterable[Any], weights: Mapping[str, np.ndarray], shape: Sequence[int]) -> Path:
    graph = helper.make_graph(
        list(nodes),
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "classes"])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def same_class_as(model: Path, x: np.ndarray) -> Callable[[str], float]:
    """The share of decisions that are fp32's."""
    exact = results(model, x, "x").argmax(axis=1)
    return lambda path: float((results(path, x, "x").argmax(axis=1) == exact).mean())


def node(kind: str, *names: str, **attributes: Any) -> Any:
    *inputs, output = names
    return helper.make_node(kind, inputs, [output], f"/{output}/{kind}", **attributes)


def check_cured(found: Tuned, what: str, **changed: Any) -> None:
    """Cured in the second trial by just this change, with nothing in fp32."""
    assert found.met
    assert [trial.fallback for trial in found.trials] == [[], []]
    first, second = found.trials
    assert found.best is second
    assert {k: v for k, v in second.config.items() if v != first.config[k]} == changed
    assert second.notes == [f"instead of fp32: {what}"]


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_one_large_row_of_weights_is_cured_by_a_scale_for_each_channel(tmp_path: Path, form: Any) -> None:
    """300 times two features that are equal: they cancel, and still the other weights get few steps."""
    random = np.random.default_rng(0)
    w = random.normal(size=(12, 10))
    w[0, 8], w[0, 9] = 300, -300
    x = random.normal(size=(128, 10)).astype(np.float32)
    x[:, 9] = x[:, 8]
    nodes = [node("Gemm", "x", "w", "h", transB=1), node("Relu", "h", "r"), node("MatMul", "r", "w2", "y")]
    model = save(tmp_path / "m.onnx", nodes, {"w": w, "w2": random.normal(size=(12, 6))}, [10])
    tool = OnnxRuntimeQuantizer(format=form, reduce_range=True)
    found = tune(model, x[:64], same_class_as(model, x), tolerance=0.08, quantizer=tool, logdir=tmp_path / "log")
    check_cured(found, "a scale for each channel of the weights", per_channel=True)


def test_large_values_that_the_percentile_cuts_off_are_cured_by_minimum_and_maximum(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    calibrating = random.uniform(0, 1, (2000, 1, 8, 8)).astype(np.float32)
    calibrating[0, 0, 3, 3] = 16
    x = random.uniform(0, 1, (200, 1, 8, 8)).astype(np.float32)
    for row in x.reshape(200, 64):
        row[random.choice(64, 2, replace=False)] = random.uniform(8, 16, 2)
    nodes = [
        node("Conv", "x", "w", "c"),
        node("Relu", "c", "r"),
        node("Flatten", "r", "f"),
        node("MatMul", "f", "e", "y"),
    ]
    model = save(tmp_path / "m.onnx", nodes, {"w": np.ones((1, 1, 1, 1)), "e": np.eye(64)}, [1, 8, 8])
    found = tune(
        model, {"x": calibrating}, same_class_as(model, x), quantizer=OnnxRuntimeQuantizer(calibrator="percentile"),
        logdir=tmp_path / "log",
    )  # fmt: skip
    check_cured(found, "calibration by minimum and maximum", calibrator="minmax")


def test_one_value_far_out_is_cured_by_percentiles(tmp_path: Path) -> None:
    """It is 1000 once in 128,000 times, and a sigmoid makes 1 of it anyway."""
    random = np.random.default_rng(0)
    calibrating = random.uniform(-1, 1, (2000, 1, 8, 8)).astype(np.float32)
    calibrating[0, 0, 3, 3] = 1000
    x = random.uniform(-1, 1, (200, 1, 8, 8)).astype(np.float32)
    w = random.normal(size=(64, 5))
    nodes = [
        node("Conv", "x", "w", "c"), node("Sigmoid", "c", "s"), node("Flatten", "s", "f"),
        node("MatMul", "f", "e", "y"),
    ]  # fmt: skip
    model = save(tmp_path / "m.onnx", nodes, {"w": np.ones((1, 1, 1, 1)), "e": w - w.mean(axis=0)}, [1, 8, 8])
    found = tune(
        model, {"x": calibrating}, same_class_as(model, x), tolerance=0.1, logdir=tmp_path / "log",
        quantizer=OnnxRuntimeQuantizer(reduce_range=True),
    )  # fmt: skip
    check_cured(found, "calibration by percentiles", calibrator="percentile")


def test_tensors_that_no_calibrator_suits_get_ranges_of_their_own(tmp_path: Path) -> None:
    """What is 1000 once a sample is 1 behind a sigmoid; what is large as seldom decides elsewhere."""
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (264, 3, 8, 8)).astype(np.float32)
    x[:, 1:] = 0
    for channel in (1, 2):
        x[range(264), channel, random.integers(8, size=264), 3] = random.uniform(0.5, 1, 264)
    w = random.normal(size=(64, 64))
    nodes = [
        node("Conv", "x", "one", "a"), node("Conv", "x", "huge", "z"), node("Add", "a", "z", "c"),
        node("Sigmoid", "c", "s"), node("Flatten", "s", "f"), node("MatMul", "f", "e", "y1"),
        node("Conv", "x", "large", "d"), node("Flatten", "d", "g"), node("Add", "y1", "g", "y"),
    ]  # fmt: skip
    weights = {
        **{name: np.array(each).reshape(1, 3, 1, 1) for name, each in
           (("one", [1, 0, 0]), ("huge", [0, 1000, 0]), ("large", [0, 0, 5]))},
        "e": 2 * (w - w.mean(axis=0)),
    }  # fmt: skip
    model = save(tmp_path / "m.onnx", nodes, weights, [3, 8, 8])
    found = tune(
        model, {"x": x[:64]}, same_class_as(model, x[64:]), tolerance=0.1, logdir=tmp_path / "log",
        quantizer=OnnxRuntimeQuantizer(reduce_range=True), rewrite=False,
    )  # fmt: skip
    ranges = found.best.config["ranges"]
    assert set(ranges) == {"c"}
    assert ranges["c"][1] < 100
    check_cured(found, "ranges of their own for 1 tensor, by 1/64 of the largest", ranges=ranges)


def test_means_that_rounded_weights_shift_are_cured_by_biases(tmp_path: Path) -> None:
    """All inputs are about 20, and what is left of that decides."""
    random = np.random.default_rng(0)
    w = random.normal(size=(8, 16, 1, 1))
    x = 20 + random.normal(size=(200, 16, 1, 1)) * 0.5 + random.normal(size=(200, 16, 6, 6))
    x = x.astype(np.float32)
    nodes = [
        node("Conv", "x", "w", "b", "c"),
        node("GlobalAveragePool", "c", "p"),
        node("Flatten", "p", "y"),
    ]
    model = save(tmp_path / "m.onnx", nodes, {"w": w, "b": -20 * w.sum(axis=(1, 2, 3))}, [16, 6, 6])
    found = tune(
        model, x[:64], same_class_as(model, x[64:]), tolerance=0.1, objectives=(), logdir=tmp_path / "log",
        quantizer=OnnxRuntimeQuantizer(**SETTINGS),
    )  # fmt: skip
    (rewrite,) = rewrites = found.best.config["rewrites"]
    check_cured(found, "biases of the fp32 model that make up for rounded weights", rewrites=rewrites)
    assert (rewrite["kind"], rewrite["ops"]) == ("bias", ["/c/Conv"])
    cured = inc_tb.apply(model, tmp_path / "log" / found.best.name)
    (mine,), (theirs,) = ([t for t in m.graph.initializer if t.name == "b"] for m in (onnx.load(model), cured))
    more = numpy_helper.to_array(theirs) - numpy_helper.to_array(mine)
    np.testing.assert_allclose(more, rewrite["values"], rtol=1e-4, atol=1e-5)
    logged = tmp_path / "log"
    onnx.save(cured, tmp_path / "cured.onnx")
    np.testing.assert_allclose(
        results(tmp_path / "cured.onnx", x, "x"), results(logged / "prepared_model.onnx", x, "x")
    )
    with pytest.raises(ModelError, match=r"no 1 op with the same biases to change so \(bias\)"):
        inc_tb.apply(cured, tmp_path / "log" / found.best.name)


class WithoutRanges(OnnxRuntimeQuantizer):
    """With them the range of what a sigmoid reads ends where its results do."""

    def with_ranges(self, settings: Mapping[str, Any], ranges: Mapping[str, Any]) -> None:
        return None


def test_a_large_channel_is_cured_by_16_bits(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    w = random.normal(size=(8, 4, 1, 1))
    w[0] *= 300
    x = random.normal(size=(200, 4, 6, 6)).astype(np.float32)
    weights = {"w": w, "w2": random.normal(size=(8, 8, 3, 3)), "w3": random.normal(size=(8, 4))}
    nodes = [
        node("Conv", "x", "w", "c"), node("Sigmoid", "c", "s"), node("Conv", "s", "w2", "c2"),
        node("GlobalAveragePool", "c2", "p"), node("Flatten", "p", "f"), node("MatMul", "f", "w3", "y"),
    ]  # fmt: skip
    model = save(tmp_path / "m.onnx", nodes, weights, [4, 6, 6])
    found = tune(
        model, x[:64], same_class_as(model, x), tolerance=0.05, quantizer=WithoutRanges(**SETTINGS),
        logdir=tmp_path / "log",
    )  # fmt: skip
    assert "c" in found.best.config["int16_tensors"]
    check_cured(found, "16 bits for the activations that suffer", int16_tensors=found.best.config["int16_tensors"])
    zero = {n.input[0]: n.input[2] for n in onnx.load(found.model).graph.node if n.op_type == "QuantizeLinear"}["c"]
    (stored,) = (t for t in onnx.load(found.model).graph.initializer if t.name == zero)
    assert stored.data_type == TensorProto.UINT16


class Saturating(Wrapped):
    """As on a CPU without VNNI: sums of 8-bit weights are cut off in the kernel, those of 7-bit weights are not."""

    def quantize(
        self, model: Path, target: Path, batches: Iterable[Any], settings: Mapping[str, Any], keep: Sequence[str]
    ) -> None:
        super().quantize(model, target, batches, settings, keep)
        if settings["reduce_range"]:
            return
        proto = onnx.load(target)
        at, first = next((i, n) for i, n in enumerate(proto.graph.node) if n.op_type == "Gemm")
        (out,) = first.output
        first.output[0] = "sum"
        limits = {"low": -0.3, "high": 0.3}
        proto.graph.initializer.extend(numpy_helper.from_array(np.float32(v), name) for name, v in limits.items())
        proto.graph.node.insert(at + 1, helper.make_node("Clip", ["sum", *limits], [out], "/kernel/Clip"))
        onnx.save(proto, target)


def test_saturating_kernels_are_cured_by_7_bits(tmp_path: Path) -> None:
    """What the simulation, whose kernels do not saturate, cannot see: only the real model gets better."""
    random = np.random.default_rng(0)
    x = random.normal(size=(128, 10)).astype(np.float32)
    nodes = [node("Gemm", "x", "w", "h", transB=1), node("Relu", "h", "r"), node("MatMul", "r", "w2", "y")]
    weights = {"w": random.normal(size=(12, 10)), "w2": random.normal(size=(12, 6))}
    model = save(tmp_path / "m.onnx", nodes, weights, [10])
    found = tune(
        model, x[:64], same_class_as(model, x), tolerance=0.08, quantizer=Saturating(), logdir=tmp_path / "log"
    )
    assert found.comparison["real"].error > 10 * found.comparison["simulated"].error
    check_cured(found, "7 bits for weights, because the integer kernels saturate", reduce_range=True)


def test_no_cure_is_tried_where_no_rule_points_to_one(tmp_path: Path) -> None:
    """Per channel and 8 bits unsigned: what is wrong with the hard model is one tensor, and 16 bits are not enough."""
    found = tune_hard(tmp_path, tolerance=0.005)
    assert found.met
    tried = [note for trial in found.trials for note in trial.notes if note.startswith("instead of fp32")]
    assert all("16 bits" in note for note in tried)
    assert not any("calibration" in note or "channel" in note for note in tried)
