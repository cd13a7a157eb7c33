"""Models that cannot be meant as a pair are told in one line; all others are compared, whatever they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantFormat, quantize_dynamic
from torch import nn

import inc_tb
from inc_tb.errors import ModelError, UsageError
from tests.digits import DATA, digits, write_pruned

HARD = DATA / "hard.onnx"
EXPECTED = "expected the fp32 model, then what it became by quantization"


def refused(reference: Any, quantized: Any, data: Any = None) -> str:
    with pytest.raises(UsageError) as caught:
        inc_tb.diagnose(reference, quantized, digits(4) if data is None else data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_quantized_model_that_is_none() -> None:
    """Quantizers that write a file return nothing."""
    for call in (inc_tb.diagnose, inc_tb.probe):
        with pytest.raises(ModelError) as caught:
            call(HARD, None, {})
        assert str(caught.value) == (
            f"the quantized model is None; expected a model beside {HARD}. A quantizer that writes a file returns "
            "None: give the path of that file."
        )


@pytest.fixture
def dynamic(tmp_path: Path) -> Path:
    quantize_dynamic(HARD, tmp_path / "dynamic.onnx")
    return tmp_path / "dynamic.onnx"


def test_the_wrong_order(quantized: Callable[..., Path], dynamic: Path) -> None:
    qdq, qoperator = (quantized("hard", quant_format=form) for form in (QuantFormat.QDQ, QuantFormat.QOperator))
    for int8 in (qdq, qoperator, dynamic):
        said = refused(int8, HARD)
        assert said.startswith(f"{int8}, given first, is quantized, and {HARD}, given second, is not")
        assert said.endswith("Swap the two.")
    assert "ModelProto, given first" in refused(onnx.load(qdq), onnx.load(HARD))
    with pytest.raises(UsageError, match="Swap the two"):
        inc_tb.probe(qdq, HARD, digits(4))
    with pytest.raises(UsageError, match="Swap the two"):
        inc_tb.profile(qdq, digits(1), quantized=HARD, runs=2)


def test_a_reference_may_be_quantized_as_long_as_the_other_model_is(
    quantized: Callable[..., Path], dynamic: Path
) -> None:
    for reference, other in ((dynamic, quantized("hard")), (quantized("hard"), dynamic)):
        assert not any("nothing is quantized" in n for n in inc_tb.diagnose(reference, other, digits(4)).notes)


def test_the_same_model_in_any_file(tmp_path: Path, quantized: Callable[..., Path]) -> None:
    copy = shutil.copyfile(HARD, tmp_path / "copy.onnx")
    assert refused(HARD, HARD).startswith(f"{HARD} was given twice; {EXPECTED}")
    assert refused(HARD, copy).startswith(f"{HARD} and {copy} are the same model; {EXPECTED}")
    assert "are the same model" in refused(quantized("hard"), shutil.copyfile(quantized("hard"), copy))
    model = onnx.load(HARD)
    model.producer_name, model.graph.doc_string, model.graph.node[0].doc_string = "another", "words", "more"
    onnx.save(model, tmp_path / "again.onnx")
    assert "are the same model" in refused(HARD, tmp_path / "again.onnx")
    _save_beside(model, tmp_path / "beside")
    assert "are the same model" in refused(HARD, tmp_path / "beside" / "model.onnx")
    assert "ModelProto, are the same; " in refused(onnx.load(HARD), onnx.load(HARD))


def test_other_weights_in_a_file_beside_the_model_are_another_model(tmp_path: Path) -> None:
    """The models' own files are equal, byte by byte."""
    write_pruned(tmp_path / "pruned.onnx")
    for name, source in (("fp32", HARD), ("pruned", tmp_path / "pruned.onnx")):
        _save_beside(onnx.load(source), tmp_path / name)
    models = [tmp_path / name / "model.onnx" for name in ("fp32", "pruned")]
    assert models[0].read_bytes() == models[1].read_bytes()
    found = inc_tb.diagnose(*models, digits(4))
    assert "nothing is quantized in the second model; what differs has another cause" in found.notes[0]


def test_what_is_not_quantized_but_another_model_is_compared(tmp_path: Path) -> None:
    found = inc_tb.diagnose(HARD, write_pruned(tmp_path / "pruned.onnx"), digits(4))
    assert found.notes == [
        "nothing is quantized in the second model; what differs has another cause: weights, types or kernels"
    ]
    assert np.nanmax(found.ops["w_mse"]) > 0
    converted = onnx.load(HARD)
    converted.graph.node.append(helper.make_node("Identity", [converted.graph.output[0].name], ["same"], "same"))
    converted.graph.output[0].name = "same"
    onnx.save(converted, tmp_path / "converted.onnx")
    found = inc_tb.diagnose(HARD, tmp_path / "converted.onnx", digits(4))
    assert found.notes == ["nothing is quantized in the second model; nothing that is compared differs"]


class Switched(nn.Module):
    """Quantized by hand: nothing but its code tells."""

    def __init__(self, is_rounded: bool) -> None:
        super().__init__()
        self.fc, self.is_rounded = nn.Linear(4, 3), is_rounded

    def forward(self, x: torch.Tensor) -> Any:
        y = self.fc(x)
        return torch.round(y * 8) / 8 if self.is_rounded else y


def test_objects_are_the_same_when_their_values_are_too() -> None:
    plain, rounded = Switched(False), Switched(True)
    rounded.load_state_dict(plain.state_dict())
    copy = Switched(False)
    copy.load_state_dict(plain.state_dict())
    x = torch.randn(5, 4)
    assert "Switched was given twice" in refused(plain, plain, x)
    assert "Switched, are the same; " in refused(plain, copy, x)
    found = inc_tb.diagnose(plain, rounded, x)
    assert found.notes == ["nothing is quantized in the second model; nothing that is compared differs"]


def _save_beside(model: onnx.ModelProto, folder: Path) -> None:
    folder.mkdir()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(copy, folder / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
