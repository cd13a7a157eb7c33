"""Tensors of PyTorch in TensorBoard: quantized ones, which torch's own add_histogram refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

import inc_tb
from inc_tb.store.eventfile import event_files, read_events

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
VALUES = torch.linspace(-2, 3, 60).reshape(3, 20)
SCALES = torch.tensor([0.1, 0.05, 0.02])


def tensors() -> dict[str, torch.Tensor]:
    return {
        "qint8": torch.quantize_per_tensor(VALUES, 0.05, 3, torch.qint8),
        "quint8": torch.quantize_per_tensor(VALUES, 0.05, 60, torch.quint8),
        "per channel": torch.quantize_per_channel(VALUES, SCALES, torch.zeros(3, dtype=torch.int64), 0, torch.qint8),
        "bfloat16": VALUES.bfloat16(),
        "with a history": VALUES.clone().requires_grad_() * 2,
        "whole numbers": torch.arange(12),
    }


def histograms(folder: Path) -> dict[tuple[str, int], np.ndarray]:
    found = {}
    for path in event_files(folder):
        for event in read_events(path):
            for value in event.summary.value:
                if value.HasField("tensor") and value.tensor.tensor_shape.dim:
                    shape = [dim.size for dim in value.tensor.tensor_shape.dim]
                    data = np.frombuffer(value.tensor.tensor_content, np.float64)
                    if shape[-1:] == [3] and data.size == np.prod(shape):
                        found[value.tag, event.step] = data.reshape(shape)
    return found


def real(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    return (tensor.dequantize() if tensor.is_quantized else tensor).double().numpy().ravel()


@pytest.mark.parametrize("kind", ["qint8", "quint8", "per channel", "bfloat16", "with a history", "whole numbers"])
def test_a_histogram_of_any_tensor(kind: str, tmp_path: Path) -> None:
    tensor = tensors()[kind]
    with inc_tb.SummaryWriter(tmp_path / "ours") as ours:
        ours.add_histogram("w", tensor, 4)
    with SummaryWriter(tmp_path / "torch") as theirs:
        inc_tb.log_histogram(theirs, "w", tensor, 4)
    for folder in ("ours", "torch"):
        found = histograms(tmp_path / folder)["w", 4]
        expected, borders = np.histogram(real(tensor), len(found))
        np.testing.assert_array_equal(found[:, 2], expected)
        np.testing.assert_allclose(found[:, 0], borders[:-1], rtol=1e-12, atol=1e-12)


def test_torch_itself_refuses_a_quantized_tensor(tmp_path: Path) -> None:
    """Why there is log_histogram at all."""
    with SummaryWriter(tmp_path) as writer, pytest.raises(Exception, match=r".+"):
        writer.add_histogram("w", tensors()["per channel"], 0)


def test_steps_of_a_histogram_must_grow(tmp_path: Path) -> None:
    with inc_tb.SummaryWriter(tmp_path) as writer:
        writer.add_histogram("w", VALUES, 2)
        with pytest.raises(inc_tb.IncTbError, match="step 2"):
            writer.add_histogram("w", VALUES, 2)
    with inc_tb.SummaryWriter(tmp_path) as writer:
        writer.add_histogram("w", VALUES)
    assert set(histograms(tmp_path)) == {("w", 2), ("w", 3)}


def test_a_training_has_one_reference(tmp_path: Path) -> None:
    """Its weights change from step to step, and it is the same model all the same."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU())
    other = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU())
    with inc_tb.SummaryWriter(tmp_path / "training") as writer:
        for _ in range(3):
            with torch.no_grad():
                model[0].weight.mul_(1.1)
            writer.add_diagnosis(inc_tb.diagnose(model, other, torch.randn(8, 6)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fp32", "training"]


def test_a_diagnosis_of_pytorch_models_in_the_users_own_log(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).eval()
    other: Any = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).eval()
    other.load_state_dict({name: value.half().float() for name, value in model.state_dict().items()})
    with SummaryWriter(tmp_path) as writer:
        for step in (10, 20):
            writer.add_scalar("loss", 1 / step, step)
            found = inc_tb.diagnose(model, other, torch.randn(8, 6))
            inc_tb.log_diagnosis(writer, found, step)
    run = inc_tb.load(tmp_path)
    assert sorted(run.diagnoses) == [10, 20]
    assert run.ops["name"].tolist() == ["0", "1", "2"]
    assert run.diagnosis.framework == "torch"
