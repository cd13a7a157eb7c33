"""A format for each matrix under a budget, and the recipes that say so."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import inc_tb
from inc_tb.cli import main
from inc_tb.errors import UsageError
from inc_tb.frameworks.language import Matrix
from inc_tb.frameworks.models import open_language
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.torch import FRAMEWORK
from inc_tb.frameworks.torch.bit_recipes import TOOLS, write_recipe
from inc_tb.llm.bits import Allocated, allocate, best_within, mean_bits
from inc_tb.llm.formats import find_format
from inc_tb.show.bits import bits_lines
from tests import language_models as made

FORMATS = ["int2-g32", "int4-g32", "int8"]


def batches(half: int) -> list[dict[str, Array]]:
    ids = np.array(made.make_tokenizer()(made.TEXT * 6)["input_ids"])[:128].reshape(2, 4, 16)
    return [{"input_ids": ids[half]}]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return made.make_model()


@pytest.fixture(scope="module")
def found(model: nn.Module) -> Allocated:
    return allocate(open_language(model), lambda: batches(0), lambda: batches(1), FORMATS, bits=5.5, curve=1)


def test_the_best_fits_and_is_no_worse_than_one_format_for_all(model: nn.Module, found: Allocated) -> None:
    language = open_language(model)
    assert found.best.bits <= 5.5
    assert found.best.bits == pytest.approx(mean_bits(language.matrices, found.best.formats))
    assert found.uniform is not None
    assert found.uniform.name == "int4-g32 for all"
    assert found.best.kl <= found.uniform.kl
    assert found.best.kl == min(choice.kl for choice in found.choices if choice.fits)
    weights = sum(p.numel() for p in model.parameters()) - sum(m.size for m in language.matrices)
    bits = sum(find_format(found.best.formats[m.name]).bits_per_weight(m.columns) * m.size for m in language.matrices)
    assert found.best.size == pytest.approx((bits + 16 * weights) / 8, abs=1)


def test_a_mixture_is_compared_with_one_format_for_all(found: Allocated) -> None:
    worse, better = (next(c for c in found.choices if c.name == f"{name} for all") for name in ("int2-g32", "int8"))
    lines = bits_lines(replace(found, best=better, uniform=worse, gain=(-0.5, -0.25)))
    assert "Best within 5.5 bits a weight: int8 for all, 14 in int8." in lines[0]
    assert "14 in int2-g32, has" in lines[1]
    assert "the difference is -0.5 to -0.25 in 95 of 100 cases" in lines[1]
    assert bits_lines(replace(found, uniform=None))[1] == "No format fits for all matrices alike."


def test_what_was_measured_is_what_the_set_does(model: nn.Module, found: Allocated) -> None:
    ids, other = torch.from_numpy(batches(1)[0]["input_ids"]), copy.deepcopy(model)
    for name, format_ in found.best.formats.items():
        module = other.get_submodule(name)
        module.weight.data = torch.from_numpy(find_format(format_).round(module.weight.detach().numpy()))
    with torch.no_grad():
        p, q = (m(input_ids=ids).logits.double().log_softmax(-1) for m in (model, other))
    assert found.best.kl == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=1e-3)


def matrices(count: int) -> list[Matrix]:
    return [Matrix(f"layers.{i}.a", i, "a", 64, 64 * (1 + i % 3)) for i in range(count)]


def test_the_allocation_is_nearly_the_best_there_is() -> None:
    """Of every one that fits, for some made scores; a step that does not fit is all that may be lost."""
    some, drawn = matrices(6), np.random.default_rng(0)
    for budget in (3.0, 4.5, 6.0):
        base = {m.name: float(drawn.lognormal()) for m in some}
        scores = {
            name: {m: s * loss for m, s in base.items()} for name, loss in zip(FORMATS, (1, 0.06, 2e-4), strict=True)
        }
        plan = best_within(some, scores, budget, lambda m: m.name)
        assert mean_bits(some, plan) <= budget

        def loss(plan: dict[str, str], scores: dict[str, dict[str, float]] = scores) -> float:
            return sum(scores[format_][name] for name, format_ in plan.items())

        names: Sequence[str] = [m.name for m in some]
        every = (dict(zip(names, chosen, strict=True)) for chosen in itertools.product(FORMATS, repeat=6))
        best = min(loss(plan) for plan in every if mean_bits(some, plan) <= budget)
        largest = max(base.values())
        assert best <= loss(plan) <= best + largest


def test_budgets_that_cannot_be(model: nn.Module) -> None:
    language = open_language(model)
    for more, said in (
        ({"bits": 2.0}, "2 bits a weight were given; int2-g32, the smallest of the formats, takes 2.5 bits"),
        ({"size": 10_000}, "0.01 MB were given; int2-g32, the smallest of the formats, takes 2.5 bits, 0.02"),
        ({}, "neither or both were given"),
    ):
        with pytest.raises(UsageError, match=said):
            allocate(language, lambda: batches(0), lambda: batches(1), FORMATS, **more)
    with pytest.raises(UsageError, match="int8 was given; expected two formats or more"):
        allocate(language, lambda: batches(0), lambda: batches(1), ["int8"], bits=9)


def test_torchao_makes_of_its_recipe_what_was_measured(model: nn.Module) -> None:
    names = [m.name for m in open_language(model).matrices]
    kinds = ["int4-g32", "int8", "bf16", "int3-g32", "int4-g32-asym"]
    formats = {name: kinds[i % 5] for i, name in enumerate(names)}
    other = copy.deepcopy(model)
    exec(write_recipe("torchao", formats), {"model": other})
    for name, format_ in formats.items():
        own = model.get_submodule(name).weight.detach().numpy()
        expected = own if format_ == "bf16" else find_format(format_).round(own)
        weight = other.get_submodule(name).weight
        got = weight.detach() if format_ == "bf16" else weight.dequantize()
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-6 * float(np.abs(own).max()))


def test_neural_compressor_quantizes_by_its_recipe(model: nn.Module) -> None:
    names = [m.name for m in open_language(model).matrices]
    formats = {name: "bf16" if name.endswith("q_proj") else "int4-g32" for name in names}
    told: dict[str, object] = {"model": copy.deepcopy(model)}
    exec(write_recipe("neural-compressor", formats), told)
    made_ = told["model"]
    assert isinstance(made_, nn.Module)
    for name, format_ in formats.items():
        own, now = model.get_submodule(name).weight, made_.get_submodule(name)
        is_same = isinstance(now, nn.Linear) and torch.equal(now.weight, own)
        assert is_same == (format_ == "bf16"), name


def test_recipes_of_tools_that_are_not_here() -> None:
    """That they are Python, and what they tell."""
    formats = {"model.layers.0.mlp.up_proj": "int4-g32", "model.layers.1.mlp.up_proj": "int8",
               "model.layers.2.mlp.up_proj": "bf16", "model.layers.3.mlp.up_proj": "int4-g32"}  # fmt: skip

    def told(tool: str, name: str) -> object:
        text = write_recipe(tool, formats)
        compile(text, tool, "exec")
        names: dict[str, object] = {}
        start = text.index(f"{name} = ")
        exec(text[start : text.index("\n}", start) + 2], names)
        return names[name]

    assert told("auto-round", "layers") == {
        "model.layers.0.mlp.up_proj": {"bits": 4, "group_size": 32, "sym": True},
        "model.layers.1.mlp.up_proj": {"bits": 8, "group_size": -1, "sym": True},
        "model.layers.2.mlp.up_proj": {"bits": 16},
        "model.layers.3.mlp.up_proj": {"bits": 4, "group_size": 32, "sym": True},
    }
    assert told("gptqmodel", "exceptions") == {
        r"-:^model\.layers\.2\.mlp\.up_proj$": {},
        r"+:^model\.layers\.1\.mlp\.up_proj$": {"bits": 8, "group_size": -1, "sym": True},
    }
    assert told("llm-compressor", "groups") == {
        "group_0": {
            "targets": [r"re:^model\.layers\.0\.mlp\.up_proj$", r"re:^model\.layers\.3\.mlp\.up_proj$"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
        },
        "group_1": {
            "targets": [r"re:^model\.layers\.1\.mlp\.up_proj$"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
        },
    }
    line = write_recipe("llama.cpp", {"model.layers.0.mlp.down_proj": "q8_0", "model.layers.1.mlp.up_proj": "q4_0",
                                      "model.layers.1.self_attn.o_proj": "q4_0"})  # fmt: skip
    assert r"--tensor-type '^blk\.0\.ffn_down\.weight$=q8_0'" in line
    assert line.endswith("model-quantized.gguf Q4_0\n")


def test_the_tools_of_the_command_line_have_recipes() -> None:
    assert list(FRAMEWORK.bit_tools) == list(TOOLS)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_tool_cannot_say(tool: str) -> None:
    with pytest.raises(UsageError, match=f"the recipe for {tool} cannot say mxfp4"):
        write_recipe(tool, {"model.layers.0.mlp.up_proj": "mxfp4"})


def test_on_the_command_line(model: nn.Module, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made.save_folder(model, tmp_path / "fp32")
    (tmp_path / "text.txt").write_text(made.TEXT * 6)
    line = [f"{tmp_path}/fp32", "--text", f"{tmp_path}/text.txt", "--length", "16", "--logdir", f"{tmp_path}/log"]
    more = ["--formats", "int4-g32,int8,bf16", "--size", "45kB", "--curve", "0"]

    def run(*given: str, code: int = 0) -> None:
        with pytest.raises(SystemExit) as done:
            main(["bits", *line, *given])
        assert done.value.code in (code, code or None)

    run(*more, "--recipe", "torchao", "--output", f"{tmp_path}/recipe.py")
    shown = " ".join(capfd.readouterr().out.split())
    assert "Best within 4.538 bits a weight" in shown
    assert "FqnToConfig" in (tmp_path / "recipe.py").read_text()
    trial = inc_tb.load(tmp_path / "log" / "int4-g32-for-all").trial
    assert trial is not None
    assert (trial.lower_is_better, round(trial.objectives["bits"], 3)) == (True, 4.5)
    run(*more, "--json")
    found = json.loads(capfd.readouterr().out)
    kl = {choice["name"]: choice["kl"] for choice in found["choices"]}
    assert trial.accuracy == pytest.approx(kl["int4-g32 for all"], rel=1e-6)
    for given, said in (
        (["--size", "many"], "--size many was given; expected a size such as 80MB"),
        ([], "expected --bits or --size; neither was given"),
        (["--bits", "5", "--output", "x"], "--output was given without --recipe"),
        (["--bits", "5", "--recipe", "llama.cpp"], "the recipe for llama.cpp cannot say int4-g32"),
        (["--bits", "5", "--samples", "1"], "expected two, to choose by one"),
    ):
        run(*given, code=2)
        assert said in capfd.readouterr().err
