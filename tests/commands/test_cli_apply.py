"""`inc-tb apply`: the rewrites of a trial, done again to the fp32 model, and to no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import torch
from torch import nn

import inc_tb
from inc_tb import OnnxRuntimeQuantizer, Trial
from inc_tb.cli import main
from inc_tb.errors import DataError, ModelError, UsageError
from inc_tb.frameworks.models import open_results
from inc_tb.frameworks.registry import framework_of
from tests.digits import DATA
from tests.outliers import Plain, Tokens, as_onnx, injected, lost, samples


def run(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def logged(folder: Path, model: Any, data: Any, settings: Any) -> Path:
    """The run of a trial that has rewritten a model."""
    rewrites = framework_of(model).find_rewrites(model, [data])
    assert rewrites
    config = {**settings, "rewrites": msgspec.to_builtins(rewrites)}
    with inc_tb.SummaryWriter(folder) as writer:
        writer.add_trial(Trial(folder.name, 0.9, 1.0, config=config))
    return folder


@pytest.fixture(scope="module")
def spoilt() -> onnx.ModelProto:
    return as_onnx(injected(Tokens, "up", ("down",), 1, 400.0))


@pytest.fixture
def fp32(spoilt: onnx.ModelProto, tmp_path: Path) -> Path:
    onnx.save(spoilt, tmp_path / "fp32.onnx")
    return tmp_path / "fp32.onnx"


@pytest.fixture
def cure(fp32: Path, tmp_path: Path) -> Path:
    """Found as a tuning does: in the prepared model."""
    tool = OnnxRuntimeQuantizer()
    return logged(tmp_path / "trial-002", tool.prepare(fp32, tmp_path / "prepared"), samples(Tokens, 1), tool.settings)


def test_the_model_and_a_record_of_what_was_done(fp32: Path, cure: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = fp32.with_name("cured.onnx")
    assert run("apply", str(fp32), "--cure", str(cure), "-o", str(target)) == 0
    told = capsys.readouterr().err
    assert "equalize: channel 3 of the results of" in told
    assert "with 1 rewrite." in " ".join(told.split())
    data = samples(Tokens, 2)
    own, theirs = (open_results(path)(data)[0] for path in (fp32, target))
    assert np.array_equal(own, theirs)
    record = fp32.with_name("cured.rewrites.json")
    (done,) = json.loads(record.read_text())
    assert (done["kind"], len(done["ops"])) == ("equalize", 3)  # the product, its bias, and what reads it
    assert 9 < len(record.read_text().splitlines()) < 12  # the numbers are in one line
    again = fp32.with_name("again.onnx")
    assert run("apply", str(fp32), "--cure", str(record), "--output", str(again), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["record"]) == (str(again), str(fp32.with_name("again.rewrites.json")))
    assert [rewrite["ops"] for rewrite in found["rewrites"]] == [done["ops"]]
    assert again.read_bytes() == target.read_bytes()


def test_a_model_that_has_to_be_prepared_first(tmp_path: Path) -> None:
    """Behind a batch norm the channels are not those of the convolution: it is folded first, as for the trial."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    with torch.no_grad():
        model[0].weight[2] *= 500
        model[3].weight[:, 2] /= 500
    raw, data = tmp_path / "raw.onnx", {"x": np.random.default_rng(0).normal(size=(4, 3, 6, 6)).astype(np.float32)}
    with_norm = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> net (float[N,3,6,6] x) => (float[N,4,6,6] y) {
            a = Conv (x, w, b)  n = BatchNormalization (a, s, o, m, v)  r = Relu (n)  y = Conv (r, u, c)
        }"""
    )
    state = [model[0].weight, model[0].bias, model[1].weight + 0.5, model[1].bias, model[1].running_mean,
             model[1].running_var * 2, model[3].weight, model[3].bias]  # fmt: skip
    for name, tensor in zip(("w", "b", "s", "o", "m", "v", "u", "c"), state, strict=True):
        with_norm.graph.initializer.append(onnx.numpy_helper.from_array(tensor.detach().numpy(), name))
    onnx.save(with_norm, raw)
    tool = OnnxRuntimeQuantizer()
    prepared = tool.prepare(raw, tmp_path / "prepared")
    cure = logged(tmp_path / "trial-003", prepared, data, tool.settings)
    made = inc_tb.apply(raw, cure)
    assert [node.op_type for node in made.graph.node] == ["Conv", "Relu", "Conv"]
    own, theirs = (open_results(m)(data)[0] for m in (prepared, made))
    assert np.array_equal(own, theirs)


def test_what_it_was_not_found_for_is_refused_in_one_line(
    cure: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "other.onnx"
    assert run("apply", str(DATA / "hard.onnx"), "--cure", str(cure), "-o", str(target)) == 2
    told = capsys.readouterr().err
    assert "hard.onnx: has no" in told
    assert "expected the model that the change was found for" in told
    assert len(told.splitlines()) == 1
    assert not target.exists()


def test_wrong_use(fp32: Path, cure: Path, tmp_path: Path) -> None:
    plain = tmp_path / "trial-001"
    with inc_tb.SummaryWriter(plain) as writer:
        writer.add_trial(Trial("trial-001", 0.9, 1.0, config=dict(OnnxRuntimeQuantizer().settings)))
    with pytest.raises(UsageError, match="is the run of no trial with rewrites; expected one whose config has some"):
        inc_tb.apply(fp32, plain)
    with pytest.raises(DataError, match="holds no rewrites"):
        inc_tb.apply(fp32, fp32)
    with pytest.raises(ModelError, match="with the same weights"):
        inc_tb.apply(inc_tb.apply(fp32, cure), cure)
    assert run("apply", str(fp32), "--cure", str(cure), "-o", str(fp32)) == 2
    assert run("apply", str(fp32), "--cure", str(cure), "-o", str(tmp_path / "nowhere" / "f.onnx")) == 2


def test_a_pytorch_model_and_its_state_dict(tmp_path: Path) -> None:
    model, data = injected(Plain, "grouped", ("last",), 0, 400.0), samples(Plain, 0)
    cure = logged(tmp_path / "trial-001", model, data, inc_tb.TorchQuantizer(approach="static").settings)
    code = tmp_path / "models.py"
    code.write_text("from tests.outliers import Plain, injected\n\n\ndef fp32():\n"
                    "    return injected(Plain, 'grouped', ('last',), 0, 400.0)\n")  # fmt: skip
    assert run("apply", f"{code}:fp32", "--cure", str(cure), "-o", str(tmp_path / "cured.pt")) == 0
    cured = injected(Plain, "grouped", ("last",), 5, 1.0)
    cured.load_state_dict(torch.load(tmp_path / "cured.pt", weights_only=True))
    x = torch.from_numpy(data["x"])
    with torch.no_grad():
        assert torch.equal(cured(x), model(x))
        assert torch.equal(inc_tb.apply(model, cure)(x), model(x))
    largest = [float(m.get_parameter("grouped.weight").detach().abs().max()) for m in (model, cured)]
    assert largest[1] < largest[0] / 10


def test_the_quantizer_makes_of_the_setting_what_it_makes_of_the_rewritten_model(
    spoilt: onnx.ModelProto, tmp_path: Path
) -> None:
    tool, data, held_out = OnnxRuntimeQuantizer(), samples(Tokens, 1), samples(Tokens, 2)
    prepared = tool.prepare(spoilt, tmp_path)
    rewrites = framework_of(prepared).find_rewrites(prepared, [data])
    told = {**tool.settings, "rewrites": msgspec.to_builtins(rewrites)}
    onnx.save(inc_tb.apply(prepared, rewrites), tmp_path / "rewritten.onnx")
    targets = [tmp_path / f"{name}.onnx" for name in ("plain", "by_setting", "by_hand")]
    tool.quantize(prepared, targets[0], [data], tool.settings, [])
    tool.quantize(prepared, targets[1], [data], told, [])  # with ranges of its own, not those found before
    other = OnnxRuntimeQuantizer()
    other.quantize(tmp_path / "rewritten.onnx", targets[2], [data], other.settings, [])
    own = open_results(prepared)(held_out)[0]
    plain, by_setting, by_hand = (open_results(target)(held_out)[0] for target in targets)
    assert np.array_equal(by_setting, by_hand)
    assert lost(own, by_setting) < lost(own, plain) / 4
