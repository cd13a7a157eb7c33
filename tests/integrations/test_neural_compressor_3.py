"""`autotune` of Neural Compressor 3.x under log(), with the real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import inc_tb
from inc_tb.integrations.neural_compressor import log
from inc_tb.integrations.neural_compressor.configs import fallback_of, settings_of
from tests.digits import digits
from tests.hard_network import Network, evaluation
from tests.integrations.tiny import FILTERS, assert_unchanged, fresh, state
from tests.tensorboards import LOADERS
from tests.test_recipes_in_tools import install

pytestmark = [
    *(pytest.mark.filterwarnings(message) for message in FILTERS),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:neural_compressor"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:torchao"),
]
IMAGES = torch.tensor(digits(200))


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


@pytest.mark.parametrize(
    ("key", "kept"),
    [("conv1", ["conv1"]), ("conv.*", ["conv1", "conv2"]), (nn.Linear, ["fc"]), (".*lm_head", []), ("gone", ["gone"])],
)
def test_what_a_config_keeps(key: Any, kept: list[str], network: Network) -> None:
    from neural_compressor.torch.quantization import RTNConfig

    modules = {name: type(module).__name__ for name, module in network.named_modules()}
    config = RTNConfig(bits=8).set_local(key, RTNConfig(dtype="fp32")).set_local("fc", RTNConfig(bits=4))
    assert fallback_of(config, modules) == kept
    both = config + static("conv2")
    assert set(fallback_of(both, modules)) == {*kept, "conv2"}
    assert settings_of(both)["algorithm"] == "rtn + static_quant"


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
