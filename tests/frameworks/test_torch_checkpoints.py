"""Language models of transformers from disk, and what `inc-tb diagnose` says of them in tokens."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

import inc_tb
from inc_tb.cli import main
from inc_tb.errors import DataError, ModelError, UsageError
from inc_tb.frameworks.models import loaded
from inc_tb.frameworks.ops import Input
from inc_tb.texts import open_text, open_tokenizer
from tests import language_models as made

TYPE = gguf.GGMLQuantizationType.Q4_0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    model = made.make_model()
    made.save_folder(model, folder / "fp32")
    made.save_gguf(model, folder / "q4.gguf", TYPE)
    (folder / "text.txt").write_text(made.TEXT * 6)
    return folder


def run(place: Path, *more: object, code: int = 0) -> None:
    with pytest.raises(SystemExit) as done:
        main(["diagnose", f"{place}/fp32", f"{place}/q4.gguf", "--logdir", f"{place}/log", *map(str, more)])
    assert done.value.code in (code, code or None)


def test_a_folder_is_the_model_that_was_saved(place: Path) -> None:
    found, own = loaded(place / "fp32"), made.make_model()
    assert isinstance(found, LlamaForCausalLM)
    assert all(torch.equal(a, b) for a, b in zip(found.state_dict().values(), own.state_dict().values(), strict=True))


def test_weights_of_gguf_are_what_its_package_reads(place: Path) -> None:
    found = loaded(place / "q4.gguf").state_dict()
    tensors = {t.name: t for t in gguf.GGUFReader(str(place / "q4.gguf")).tensors}
    for ours, theirs in (("mlp.down_proj", "ffn_down"), ("self_attn.v_proj", "attn_v"), ("mlp.up_proj", "ffn_up")):
        tensor = tensors[f"blk.1.{theirs}.weight"]
        assert tensor.tensor_type == TYPE
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(found[f"model.layers.1.{ours}.weight"].numpy(), expected)


def test_the_verdict_in_tokens(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(place, "--text", place / "text.txt", "--length", 16, "--json")
    tokens = json.loads(capfd.readouterr().out)["tokens"]
    mine, theirs = (loaded(place / name) for name in ("fp32", "q4.gguf"))
    ids = torch.tensor(made.make_tokenizer()(made.TEXT * 6)["input_ids"])
    ids = ids[: len(ids) // 16 * 16].reshape(-1, 16)
    with torch.no_grad():
        p, q = (model(input_ids=ids).logits.double().log_softmax(-1) for model in (mine, theirs))
    kl = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1).mean().item()
    assert tokens["kl"] == pytest.approx(kl, rel=1e-5)
    assert (tokens["kind"], tokens["op"], tokens["count"]) == ("causal", "lm_head", ids.numel())
    loss = torch.nn.functional.nll_loss(q[:, :-1].reshape(-1, q.shape[-1]), ids[:, 1:].reshape(-1))
    assert tokens["perplexity_quantized"] == pytest.approx(loss.exp().item(), rel=1e-5)
    words = {word for text in tokens["texts"] for word in text["words"]}
    assert {"cat", "bird"} <= words
    found = inc_tb.load(place / "log" / "q4").diagnosis.tokens
    assert found is not None
    assert json.loads(json.dumps(found.to_json())) == tokens


def test_in_the_terminal(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(place, "--text", place / "text.txt", "--length", 16)
    shown = capfd.readouterr()
    for said in ("KL divergence", "Perplexity", "where the two models are furthest apart"):
        assert said in shown.out
    assert shown.err == ""


def test_a_model_in_memory_with_its_tokenizer(place: Path) -> None:
    own = loaded(place / "fp32")
    other = loaded(place / "q4.gguf")
    ids = np.array(made.make_tokenizer()(made.TEXT)["input_ids"])[None]
    d = inc_tb.diagnose(own, other, [{"input_ids": ids}], tokenizer=open_tokenizer(place / "fp32"))
    assert d.tokens is not None
    assert d.tokens.intervals == {}  # of one sequence nothing can be said
    assert d.tokens.worst[0].reference in made.WORDS


def test_code_of_a_folder_is_not_run(place: Path, tmp_path: Path) -> None:
    folder = made.save_folder(made.make_model(steps=0), tmp_path / "code")
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}, "model_type": "evil"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match="transformers cannot read the model"):
        loaded(folder)
    assert not (tmp_path / "ran").exists()


def test_bad_input(place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF not")
    with pytest.raises(ModelError, match=r"broken\.gguf: transformers cannot read the model"):
        loaded(tmp_path / "broken.gguf")
    tokenizer, inputs = open_tokenizer(place / "fp32"), [Input("input_ids", np.dtype(int), ())]
    (tmp_path / "short.txt").write_text("the cat")
    with pytest.raises(DataError, match="has 2 tokens; expected at least one sequence of 16"):
        open_text(tmp_path / "short.txt", tokenizer, inputs, 16)
    with pytest.raises(DataError, match=r"missing.txt: cannot be read as text"):
        open_text(tmp_path / "missing.txt", tokenizer, inputs)
    with pytest.raises(UsageError, match="language='prefix' was given"):
        inc_tb.diagnose(loaded(place / "fp32"), loaded(place / "q4.gguf"), [], language="prefix")  # type: ignore[arg-type]
    for line, said in ((["--text", "a", "--data", "b"], "both were given"), ([], "neither was given")):
        run(place, *line, code=2)
        assert said in capfd.readouterr().err
