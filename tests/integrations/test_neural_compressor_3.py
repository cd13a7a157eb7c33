"""`autotune` of Neural Compressor 3.x under log(), with the real one."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import inc_tb
from inc_tb.advise.configs import recipes_for
from inc_tb.integrations.neural_compressor import log
from inc_tb.integrations.neural_compressor.configs import fallback_of
from tests.advise.test_recipes_in_tools import install
from tests.digits import digits
from tests.hard_network import Network, evaluation
from tests.integrations.tiny import FILTERS, assert_unchanged, fresh, state
from tests.tensorboards import LOADERS

pytestmark = [
    *(pytest.mark.filterwarnings(message) for message in FILTERS),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:neural_compressor"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torchao"),
]
IMAGES = torch.tensor(digits(200))


@pytest.fixture(autouse=True)
def nothing_unexpected_is_said(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Warnings are errors here, which log() turns into entries of Python's log."""
    yield
    assert said(caplog) == []


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.get_records("call") if r.name.startswith("inc_tb")]


@pytest.fixture
def network() -> Network:
    fresh()
    return Network().eval()


def calibrate(model: Any) -> None:
    for rows in IMAGES[:60].split(20):
        model(rows)


def static(*kept: str) -> Any:
    from neural_compressor.torch.quantization import StaticQuantConfig

    config = StaticQuantConfig()
    for name in kept:
        config.set_local(name, StaticQuantConfig(w_dtype="fp32", act_dtype="fp32"))
    return config


def exported(network: Network) -> Any:
    from neural_compressor.torch.export import export

    shapes = {"image": {0: torch.export.Dim("batch", min=2)}}
    return export(network, (IMAGES[:8],), dynamic_shapes=shapes)


def tuned(model: Any, configs: list[Any], evaluate: Callable[[Any], float], **options: Any) -> Any:
    from neural_compressor.torch.quantization import TuningConfig, autotune

    return autotune(model, TuningConfig(config_set=configs, tolerable_loss=0.01), eval_fn=evaluate, **options)


def runs(logdir: Path) -> list[Any]:
    return [inc_tb.load(path) for path in sorted(logdir.glob("trial-*"))]


def test_static(network: Network, tmp_path: Path) -> None:
    results: list[float] = []
    evaluate = evaluation(network, IMAGES)

    def evaluate_and_look(model: Any) -> float:
        """Every trial before this one is complete."""
        assert [run.trial.accuracy for run in runs(tmp_path)] == results[1:]
        results.append(evaluate(model))
        return results[-1]

    with log(tmp_path, samples=24):
        configs = [static(), static("conv1"), static("conv1", "conv2")]
        assert tuned(exported(network), configs, evaluate_and_look, run_fn=calibrate) is not None
    first, second, third = runs(tmp_path)
    assert [run.trial.accuracy for run in (first, second, third)] == results[1:]
    assert [run.trial.fallback for run in (first, second, third)] == [[], ["conv1"], ["conv1", "conv2"]]
    assert (first.trial.baseline, first.trial.target) == (1.0, 0.99)
    assert first.trial.accuracy < first.trial.target <= third.trial.accuracy
    assert first.trial.config["activation_dtype"] == "uint8"
    assert first.trial.config["weight_scheme"] == "sym"
    assert first.trial.wall_s > 0
    assert (first.diagnosis.samples, first.diagnosis.notes) == (24, [])
    assert {"conv1", "conv2"} <= set(first.suggestions[0].ops)
    assert third.suggestions == []
    for loader in LOADERS.values():
        with loader(tmp_path) as contents:
            assert set(contents.blobs(fetch=False)) == {"trial-001", "trial-002", "trial-003"}


def test_weights_only_has_no_calibration(network: Network, tmp_path: Path) -> None:
    """The samples are those of the evaluation."""
    from neural_compressor.torch.quantization import RTNConfig

    with log(tmp_path):
        tuned(network, [RTNConfig(bits=4), RTNConfig(bits=8)], evaluation(network, IMAGES))
    first = runs(tmp_path)[0]
    assert first.diagnosis.samples == 32
    assert first.diagnosis.reference == "Network"
    assert first.trial.config["weight_bits"] == 4
    assert first.trial.config["algorithm"] == "rtn"
    assert first.trial.fallback == []


def layers() -> nn.Module:
    return nn.Sequential(OrderedDict((f"fc{count}", nn.Linear(32, 32)) for count in range(12))).eval()


@pytest.mark.parametrize("key", ["fc1", "fc1$", "fc[3-5]", nn.Linear, ".*lm_head", "gone"])
@pytest.mark.parametrize("others", [None, ["fc3", "fc6"]])
def test_what_a_config_keeps(key: Any, others: Any) -> None:
    """As the tool does it: what it has not replaced."""
    from neural_compressor.torch.quantization import RTNConfig, quantize

    only = {} if others is None else {"white_list": others}
    config = RTNConfig(bits=4, **only).set_local(key, RTNConfig(dtype="fp32")).set_local("fc5", RTNConfig(bits=8))
    model = layers()
    kept = fallback_of(config, model)
    keys = set(config.local_config)
    made = quantize(model, config)
    assert kept == [name for name, module in made.named_modules() if type(module) is nn.Linear]
    assert keys == {key, "fc5", *(others or ())}  # to ask changes nothing


@pytest.mark.parametrize("key", ["conv1", "conv.*", "con", nn.Conv2d, nn.Linear])
def test_what_a_static_config_keeps(key: Any, network: Network) -> None:
    from neural_compressor.torch.quantization import StaticQuantConfig, quantize

    config = static(key).set_local("conv2", StaticQuantConfig())
    model = exported(network)
    kept = fallback_of(config, model)
    made = quantize(model, config, run_fn=calibrate)
    types = inc_tb.diagnose(network, made, {"image": IMAGES[:4]}).ops
    floats = [n for n, t in zip(types["name"], types["weight_dtype"], strict=True) if n in LAYERS and not t]
    assert kept == floats
    assert "conv2" not in kept


LAYERS = ("conv1", "conv2", "fc")


def test_all_trials_have_the_same_settings(network: Network, tmp_path: Path) -> None:
    from neural_compressor.torch.quantization import GPTQConfig, RTNConfig

    configs = [RTNConfig(bits=[4, 8]), RTNConfig(white_list=["fc"]) + GPTQConfig(white_list=["gone"])]
    with log(tmp_path, diagnose=False):
        results = iter([1.0, 0.1, 0.2, 0.3])
        tuned(network, configs, lambda model: next(results), run_fn=calibrate)
    trials = [run.trial for run in runs(tmp_path)]
    assert len({tuple(trial.config) for trial in trials}) == 1
    assert [trial.config["weight_bits"] for trial in trials] == [4, 8, 4]
    assert [trial.config["algorithm"] for trial in trials] == ["rtn", "rtn", "rtn + gptq"]
    assert [trial.config["act_order"] for trial in trials] == ["", "", False]


def test_no_config_that_would_quantize_activations(network: Network, tmp_path: Path) -> None:
    """Where only weights are quantized."""
    from neural_compressor.torch.quantization import RTNConfig

    with log(tmp_path):
        tuned(network, [RTNConfig(bits=2)], evaluation(network, IMAGES))
    (run,) = runs(tmp_path)
    tools = {fitted.recipe.tool for fitted in recipes_for("torch", run.ops)}
    assert "torchao" in tools
    assert not {"inc", "inc-torch"} & tools


def test_the_tuning_and_its_models_are_as_without(network: Network, tmp_path: Path) -> None:
    from neural_compressor.common.base_tuning import EvaluationFuncWrapper, TuningMonitor
    from neural_compressor.torch.quantization import quantize

    patched = dict(vars(TuningMonitor)), dict(vars(EvaluationFuncWrapper))
    found = []
    for logged in (nullcontext(), log(tmp_path)):
        fresh(1)
        results: list[float] = []
        evaluate = evaluation(network, IMAGES)

        def noisy(model: Any, evaluate: Any = evaluate, results: list[float] = results) -> float:
            results.append(evaluate(model) - float(torch.rand(1)) / 1000)
            return results[-1]

        with logged:
            made = tuned(exported(network), [static(), static("conv1", "conv2")], noisy, run_fn=calibrate)
        found.append({"results": results, **state(made)})
    assert found[0]["results"] == found[1]["results"]
    assert_unchanged(found[1], found[0])
    assert (dict(vars(TuningMonitor)), dict(vars(EvaluationFuncWrapper))) == patched
    assert sys.modules["neural_compressor.torch.quantization.autotune"].quantize is quantize  # type: ignore[attr-defined]


def test_an_error_in_the_evaluation_is_the_users(network: Network, tmp_path: Path) -> None:
    def fail(model: Any) -> float:
        raise ValueError("no such metric")

    with pytest.raises(ValueError, match="no such metric"), log(tmp_path):
        tuned(network, [static()], fail)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(network: Network, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    configs = [static(), static("conv1", "conv2")]
    with pytest.warns(RuntimeWarning, match="a trial was not logged") as warned, log(tmp_path / "logs"):
        assert tuned(exported(network), configs, evaluation(network, IMAGES), run_fn=calibrate) is not None
    assert len([w for w in warned if "the tuning goes on" in str(w.message)]) == 1


@pytest.mark.parametrize("result", [torch.tensor(0.5), np.float32(0.5), -1.0])
def test_an_evaluation_that_gives_no_usual_number(result: Any, network: Network, tmp_path: Path) -> None:
    from neural_compressor.torch.quantization import RTNConfig

    with log(tmp_path, diagnose=False):
        tuned(network, [RTNConfig(bits=8)], lambda model: result)
    (run,) = runs(tmp_path)
    assert (run.trial.baseline, run.trial.accuracy, run.trial.notes) == (float(result), float(result), [])
    assert run.trial.target == pytest.approx(float(result) - 0.01 * abs(float(result)))


def compiled(evaluate: Callable[[Any], float]) -> Callable[[Any], float]:
    def watched(model: Any) -> float:
        torch._dynamo.reset()
        return evaluate(torch.compile(model, backend="eager", fullgraph=True))

    return watched


def test_an_evaluation_that_compiles(network: Network, tmp_path: Path) -> None:
    with log(tmp_path):
        tuned(exported(network), [static()], compiled(evaluation(network, IMAGES)), run_fn=calibrate)
    (run,) = runs(tmp_path)
    assert run.diagnosis.samples == 32


def test_a_model_that_takes_no_hook(network: Network, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from neural_compressor.torch.quantization import RTNConfig

    evaluate = evaluation(network, IMAGES)
    with log(tmp_path):
        tuned(torch.jit.script(network), [RTNConfig(bits=8)], evaluate)
    assert said(caplog)[0].startswith("the model's data was not heard, the tuning goes on: ")
    caplog.clear()
    assert len(runs(tmp_path)) == 1
    with log(tmp_path / "unheard", diagnose=False):
        tuned(torch.jit.script(network), [RTNConfig(bits=8)], evaluate)


def test_warnings_that_are_errors(network: Network, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from neural_compressor.torch.quantization import RTNConfig

    configs = [RTNConfig(bits=bits) for bits in (2, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("error", UserWarning)
        for _ in range(2):
            with log(tmp_path, data={"other": IMAGES[:4]}):
                tuned(network, configs, evaluation(network, IMAGES))
        with log(tmp_path):
            pass
    first, earlier, again, nothing = said(caplog)
    assert first == again
    assert first.startswith("a trial was not diagnosed, the tuning goes on: ")
    assert "has trials of an earlier tuning" in earlier
    assert "no tuning of Neural Compressor ran" in nothing
    caplog.clear()
    assert len(list(tmp_path.rglob("trial-*"))) == 4


@pytest.mark.parametrize("diagnose", [False, True])
def test_models_are_not_kept(diagnose: bool, network: Network, tmp_path: Path) -> None:
    from neural_compressor.torch.quantization import RTNConfig

    seen: list[weakref.ref[Any]] = []
    evaluate = evaluation(network, IMAGES)

    def evaluate_and_see(model: Any) -> float:
        seen.append(weakref.ref(model))
        return evaluate(model)

    def alive() -> list[int]:
        gc.collect()
        return [place for place, model in enumerate(seen) if model() is not None]

    with log(tmp_path, diagnose=diagnose) as logged:
        for _ in range(3):
            tuned(network, [RTNConfig(bits=8)], evaluate_and_see)
        assert alive() == ([4] if diagnose else [])  # the last tuning's fp32 model
    assert alive() == []
    assert len(logged.runs) == 3


BROKEN = ["import no_such_table", "raise AttributeError('`np.float_` was removed in the NumPy 2.0 release')"]
FILES = ("__init__.py", "quantization/__init__.py", "quantization/tuning.py")


@pytest.fixture(params=[(place, code) for place in FILES for code in BROKEN], ids=str)
def broken_package(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "packages" / "onnx_neural_compressor"
    (package / "quantization").mkdir(parents=True)
    place, code = request.param
    for name in FILES:
        (package / name).write_text(code if name == place else "")
    monkeypatch.syspath_prepend(package.parent)
    yield
    for module in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[module]


@pytest.mark.usefixtures("broken_package")
def test_a_broken_package_does_not_stop_the_other(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neural_compressor.common.base_tuning import TuningMonitor
    from neural_compressor.torch.quantization import RTNConfig

    before = dict(vars(TuningMonitor))
    expected = "onnx-neural-compressor is not logged, it cannot be imported: "
    with pytest.warns(RuntimeWarning, match=expected), log(tmp_path / "logs", diagnose=False) as logged:
        tuned(network, [RTNConfig(bits=8)], evaluation(network, IMAGES))
    assert len(logged.runs) == 1
    assert dict(vars(TuningMonitor)) == before

    def fail(*args: Any) -> Any:
        raise ImportError("no such thing")

    monkeypatch.setattr("inc_tb.integrations.neural_compressor.v3.watch", fail)
    expected = "neural-compressor: ImportError: no such thing; onnx-neural-compressor: .*[^.]\\.$"
    with pytest.raises(inc_tb.IncTbError, match=expected) as told, log(tmp_path):
        pass
    assert "2.6" not in str(told.value)


def test_patches_are_taken_back_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neural_compressor.common.base_tuning import TuningMonitor

    def interrupt(logs: Any) -> Any:
        raise KeyboardInterrupt

    before = dict(vars(TuningMonitor))
    monkeypatch.setattr("inc_tb.integrations.neural_compressor._is_there", lambda module: "strategy" not in module)
    monkeypatch.setattr("inc_tb.integrations.neural_compressor.v3.watch_onnx", interrupt)
    with pytest.raises(KeyboardInterrupt), log(tmp_path):
        pass
    assert dict(vars(TuningMonitor)) == before


def test_two_tunings(network: Network, tmp_path: Path) -> None:
    from neural_compressor.torch.quantization import RTNConfig

    with log(tmp_path) as logged:
        for _ in range(2):
            tuned(network, [RTNConfig(bits=8)], evaluation(network, IMAGES))
    assert logged.runs == [tmp_path / "trial-001", tmp_path / "tuning-2" / "trial-001"]


@pytest.mark.slow
def test_tensorflow(tmp_path: Path) -> None:
    """Where setuptools is older than elsewhere: Neural Compressor needs its pkg_resources.

    Then the config of the first suggestion is pasted, and brings the accuracy back.
    """
    python = install(tmp_path / "venv", ["setuptools<82"], on_top=True)
    script = Path(__file__).with_name("neural_compressor_3_on_tensorflow.py")
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [python, "-W", "ignore", str(script), str(tmp_path / "logs")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    told = json.loads(lines[-1].removeprefix("RESULT "))
    (first, second) = runs(tmp_path / "logs")
    assert [first.trial.baseline, first.trial.accuracy, second.trial.accuracy] == told["evaluated"]
    assert second.trial.fallback == ["v0/cg/conv0/Conv2D", "v0/cg/conv1/Conv2D"]
    assert (first.diagnosis.reference, first.diagnosis.samples) == ("hard_tf.pb", 32)
    assert first.trial.accuracy < 0.5
    assert told["suggested"] > 0.99 * first.trial.baseline
    assert sorted(told["fp32"]) == ["v0/cg/conv0/Conv2D", "v0/cg/conv1/Conv2D"]
