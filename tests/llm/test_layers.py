"""What rounding each layer of a tiny Llama does to its text, against torch itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from inc_tb.cli import main
from inc_tb.errors import MismatchError, ModelError, UsageError
from inc_tb.frameworks.models import open_language
from inc_tb.frameworks.ops import Array
from inc_tb.frameworks.torch.language import TorchLanguage
from inc_tb.llm.formats import find_format
from inc_tb.llm.layers import Layers, measure_layers
from inc_tb.show.layers import layer_lines
from tests import language_models as made

SPOILT = "model.layers.1.mlp.up_proj"
ROUND = find_format("int4").round


def batches() -> list[dict[str, Array]]:
    ids = np.array(made.make_tokenizer()(made.TEXT * 6)["input_ids"])
    return [{"input_ids": ids[start : start + 64].reshape(4, 16)} for start in (0, 64)]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """One number of a matrix is so large that rounding leaves nothing of the others."""
    found = made.make_model()
    with torch.no_grad():
        found.get_submodule(SPOILT).weight[:, 5] *= 60
        found.get_submodule("model.layers.1.post_attention_layernorm").weight[5] /= 60
    return found


@pytest.fixture(scope="module")
def layers(model: nn.Module) -> Layers:
    return measure_layers(open_language(model), batches, "int4", decode=made.make_tokenizer().decode, finalists=4)


def divergence(model: nn.Module, names: list[str]) -> float:
    """By torch, in double precision."""
    ids = torch.from_numpy(np.concatenate([batch["input_ids"] for batch in batches()]))

    def logs() -> Tensor:
        with torch.no_grad():
            found: Tensor = model(input_ids=ids).logits.double().log_softmax(-1)
        return found

    own, kept = logs(), {name: model.get_submodule(name).weight.data for name in names}
    for name, weight in kept.items():
        model.get_submodule(name).weight.data = torch.from_numpy(ROUND(weight.numpy()))
    theirs = logs()
    for name, weight in kept.items():
        model.get_submodule(name).weight.data = weight
    return float((own.exp() * (own - theirs)).sum(-1).mean())


def test_divergences_are_those_of_torch(model: nn.Module, layers: Layers) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names = [scored.matrix.name for scored in layers.matrices]
    assert len(names) == 14
    assert layers.everything.kl == pytest.approx(divergence(model, names), rel=1e-4)
    for effect in (*layers.of("matrix"), *layers.of("kind")[:2], *layers.of("block")):
        assert effect.kl == pytest.approx(divergence(model, list(effect.matrices)), rel=1e-3)
    last = layers.of("block")[0]
    others = [name for name in names if name not in last.matrices]
    assert last.without == pytest.approx(divergence(model, others), rel=1e-3)
    assert (layers.tokens, layers.sequences) == (128, 8)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_what_was_spoilt_comes_first(layers: Layers) -> None:
    assert max(layers.matrices, key=lambda scored: scored.score).matrix.name == SPOILT
    assert [layers.of(what)[0].name for what in ("kind", "block", "matrix")] == ["up_proj", "1", SPOILT]
    assert [scored.matrix.name for scored in layers.unusual] == [SPOILT]
    alone = layers.of("matrix")[0]
    assert alone.score == pytest.approx(alone.kl, rel=1)
    assert alone.without is not None
    assert alone.without < layers.everything.kl / 2


def test_borders_of_blocks(model: nn.Module, layers: Layers) -> None:
    left: list[Tensor] = []
    handles = [m.register_forward_hook(lambda _, __, y: left.append(y)) for m in model.get_submodule("model.layers")]
    with torch.no_grad():
        for batch in batches():
            model(input_ids=torch.from_numpy(batch["input_ids"]))
    for handle in handles:
        handle.remove()
    for i, block in enumerate(layers.blocks):
        own = torch.cat(left[i::2])
        sequence, place, channel = np.unravel_index(int(own.abs().argmax()), own.shape)
        assert (block.sequence, block.place, block.channel) == (sequence, place, channel)
        word = np.concatenate([batch["input_ids"] for batch in batches()])[sequence, place]
        assert block.token == made.WORDS[word]
        assert block.times == pytest.approx(float(own.abs().max() / own.square().mean().sqrt()), rel=1e-4)
    assert layers.blocks[0].sqnr_db > layers.blocks[1].sqnr_db


def test_outliers_are_named_by_channel_and_token(layers: Layers) -> None:
    first, last = layers.blocks
    rms = (last.signal / last.numbers) ** 0.5
    large = replace(last, largest=-80 * rms, channel=7, place=3, sequence=2, token="\n")
    lines = layer_lines(replace(layers, blocks=[first, large]))
    assert sum("Outlier" in line for line in lines) == 1
    assert "behind block 1, 80 times the usual, in channel 7 at token 3 of sequence 2, “⏎”" in " ".join(lines)
    assert not [line for line in layer_lines(layers) if "Outlier" in line]


def test_padding_does_not_count(model: nn.Module) -> None:
    (batch, _), mask = batches(), np.ones((4, 16), np.int64)
    mask[1, 10:] = 0
    language = TorchLanguage(model)
    (watched,) = language.watch(iter([{**batch, "attention_mask": mask}]))
    assert watched.told({SPOILT: ROUND}).places.tolist() == [16, 10, 16, 16]


@pytest.fixture(scope="module")
def place(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    made.save_folder(model, folder / "fp32")
    (folder / "text.txt").write_text(made.TEXT * 6)
    return folder


def run(*line: object, code: int = 0) -> None:
    with pytest.raises(SystemExit) as done:
        main(["layers", *map(str, line)])
    assert done.value.code in (code, code or None)


def test_on_the_command_line(place: Path, layers: Layers, capfd: pytest.CaptureFixture[str]) -> None:
    line = place / "fp32", "--text", place / "text.txt", "--length", 16, "--format", "int4", "--finalists", 2
    run(*line, "--json")
    found = json.loads(capfd.readouterr().out)
    assert found["effects"][0]["kl"] == pytest.approx(layers.everything.kl, rel=1e-6)
    assert {m["name"] for m in found["matrices"]} == {scored.matrix.name for scored in layers.matrices}
    run(*line, "--top", 1)
    shown = " ".join(capfd.readouterr().out.split())
    for said in ("int4 in all 14 matrices: KL divergence", "Error from the embedding to the scores", "worst 1 of 2",
                 f"1 matrix, as {SPOILT} with", "Expected of each matrix alone"):  # fmt: skip
        assert said in shown


def test_bad_input(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(place / "fp32", "--text", place / "text.txt", "--format", "int9", code=2)
    assert "'int9' is no format of weights; expected one such as" in capfd.readouterr().err
    run(place / "fp32", code=2)
    assert "--text" in capfd.readouterr().err
    with pytest.raises(ModelError, match="has no linear layers in numbered blocks"):
        open_language(nn.Linear(3, 3))
    with pytest.raises(UsageError, match="cannot be rounded layer by layer"):
        open_language(Path(__file__).parents[1] / "data" / "clean.onnx")
    (layer,) = (nn.Sequential(nn.Sequential(nn.Linear(4, 4))),)
    with pytest.raises(MismatchError, match="expected input_ids"):
        next(TorchLanguage(layer).watch(iter([{"x": np.zeros((1, 4), np.float32)}])))


def test_layers_of_another_kind_are_refused() -> None:
    """GPT-2 has Conv1D of transformers, whose weights lie the other way."""
    config = GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=32, n_positions=8)
    with pytest.raises(ModelError, match="has no linear layers in numbered blocks"):
        open_language(GPT2LMHeadModel(config))


def test_the_model_is_put_back_after_a_failure(model: nn.Module) -> None:
    own = model.get_submodule(SPOILT).weight.data_ptr()

    def watched() -> Iterator[None]:
        for found in TorchLanguage(model).watch(iter(batches())):
            with pytest.raises(RuntimeError, match="stop"):
                found.told({SPOILT: lambda _: (_ for _ in ()).throw(RuntimeError("stop"))})
            yield

    assert len(list(watched())) == 2
    assert model.get_submodule(SPOILT).weight.data_ptr() == own
