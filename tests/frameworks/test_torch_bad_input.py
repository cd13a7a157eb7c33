"""What is wrong is said in one line: what was given, what was expected, what to do. Nothing hangs."""

from __future__ import annotations

import copy
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import inc_tb
from inc_tb.errors import DataError, IncTbError, MismatchError, ModelError

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.:DeprecationWarning"),
]
X = torch.linspace(-2, 2, 32).reshape(4, 8)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """A hang becomes an error, and no thread is left behind."""

    def expired(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, 20)
    threads, count = set(threading.enumerate()), torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(count)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    assert set(threading.enumerate()) <= threads


def refused(
    reference: Any, quantized: Any, batches: Any, kind: type[IncTbError] = IncTbError, *said: str
) -> IncTbError:
    """The error; `said` are regular expressions that its one line must match."""
    with pytest.raises(IncTbError) as caught:
        inc_tb.diagnose(reference, quantized, batches)
    error, text = caught.value, str(caught.value)
    assert isinstance(error, kind), repr(error)
    assert text.strip() == text
    assert "\n" not in text
    assert 20 < len(text) < 600
    assert text.endswith(".")
    assert "Traceback" not in text
    for pattern in said:
        assert re.search(pattern, text), f"{pattern!r} is not in: {text}"
    return error


class Mlp(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


class Other(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.GRU(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.body(x)[0])


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.fc(x) - y


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.fc = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.embedding(ids))


def dynamic(model: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model).eval(), {nn.Linear}, dtype=torch.qint8)


@pytest.fixture
def model() -> Mlp:
    return Mlp()


@pytest.fixture
def quantized(model: Mlp) -> nn.Module:
    return dynamic(model)


# --- models ---


def test_the_helper_accepts_what_is_right(model: Mlp, quantized: nn.Module) -> None:
    with pytest.raises(pytest.fail.Exception):
        refused(model, quantized, X)


def test_unrelated_models(model: Mlp) -> None:
    refused(model, Other(), X, MismatchError, "Other", "Mlp", "fp32 model")


def test_models_with_the_same_names_and_other_sizes() -> None:
    """All that they have in common are names."""
    a, b = (nn.Sequential(nn.Linear(8, w), nn.ReLU(), nn.Linear(w, n)) for w, n in ((16, 4), (24, 3)))
    refused(a, b, X, MismatchError, "Sequential")


def test_models_with_other_inputs(model: Mlp) -> None:
    refused(model, Tokens(), X, MismatchError, "quantized model", "Tokens", "float32 4x8")


@pytest.mark.parametrize("make", [lambda m: torch.jit.trace(m, X), torch.jit.script])
def test_torchscript(model: Mlp, quantized: nn.Module, make: Callable[[nn.Module], Any]) -> None:
    refused(model, make(model), X, ModelError, "TorchScript", r"nn\.Module")
    refused(make(model), quantized, X, ModelError, "TorchScript", r"nn\.Module")
    with pytest.raises(IncTbError):
        inc_tb.diagnose(None, make(model), X)


def test_a_state_dict(model: Mlp, quantized: nn.Module) -> None:
    refused(model, quantized.state_dict(), X, ModelError, "OrderedDict", r"torch\.nn\.Module")
    refused(model.state_dict(), quantized, X, ModelError, "OrderedDict", r"torch\.nn\.Module")
    refused(model, {"model": quantized.state_dict(), "epoch": 3}, X, ModelError, "dict", r"torch\.nn\.Module")


@pytest.mark.parametrize(
    "wrong", [Mlp, lambda x: x, 3, torch.zeros(3), [Mlp()]], ids="class function 3 tensor list".split()
)
def test_what_is_no_model(model: Mlp, wrong: Any) -> None:
    refused(model, wrong, X, ModelError, r"torch\.nn\.Module")
    refused(wrong, model, X, ModelError, r"torch\.nn\.Module")


def test_files_beside_a_module(model: Mlp, tmp_path: Path) -> None:
    missing, onnx, weights = (tmp_path / name for name in ("none.onnx", "model.onnx", "model.pt"))
    onnx.write_bytes(b"")
    torch.save(model.state_dict(), weights)
    refused(model, missing, X, ModelError, "no such file", re.escape(str(missing)))
    refused(model, onnx, X, ModelError, re.escape(str(onnx)), "two models of one framework")
    refused(str(onnx), model, X, ModelError, re.escape(str(onnx)), "two models of one framework")
    refused(model, weights, X, ModelError, re.escape(str(weights)), r"torch\.nn\.Module")


def test_no_reference_and_no_fake_quantizers(model: Mlp, quantized: nn.Module) -> None:
    refused(None, model, X, ModelError, "fake quantizers", "fp32")
    refused(None, quantized, X, ModelError, "fake quantizers", "fp32")
    refused(model, None, X, ModelError, "None")
    refused(None, None, X, ModelError, "None")


@pytest.mark.parametrize("which", ["reference", "quantized", "both"])
def test_models_without_values(model: Mlp, which: str) -> None:
    empty = copy.deepcopy(model).to("meta")
    pair = empty if which != "quantized" else model, copy.deepcopy(empty) if which != "reference" else model
    refused(*pair, X, ModelError, "meta")


def test_layers_without_weights_yet() -> None:
    lazy = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    refused(lazy, nn.Sequential(nn.Linear(8, 4), nn.ReLU()), X, ModelError, "LazyLinear|lazy|initiali[sz]ed")
    assert isinstance(lazy[0], nn.LazyLinear)


# --- names, shapes and types of data ---


def test_other_names_of_inputs() -> None:
    """By position they would be in the wrong order."""
    model = TwoInputs()
    refused(model, dynamic(model), {"second": X, "first": 2 * X}, MismatchError, "'second'", "'x'", "'y'")


def test_too_many_names(model: Mlp, quantized: nn.Module) -> None:
    refused(model, quantized, {"x": X, "label": torch.zeros(4)}, MismatchError, "label", "x")


def test_too_few_names() -> None:
    model = TwoInputs()
    refused(model, dynamic(model), {"x": X}, MismatchError, "'x'", "y")
    refused(model, dynamic(model), X, MismatchError, "1 array", "'x', 'y'")


def test_other_names_in_the_second_batch(model: Mlp, quantized: nn.Module) -> None:
    refused(model, quantized, [{"x": X}, {"z": X}], MismatchError, "'z'", "'x'")


def test_samples_with_labels(model: Mlp, quantized: nn.Module) -> None:
    data = torch.utils.data.TensorDataset(X, torch.zeros(4, dtype=torch.long))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    refused(model, quantized, loader, MismatchError, "2 arrays", r"\['x'\]", "mapping")


@pytest.mark.parametrize("shape", [(4, 9), (4, 8, 2), (8, 4), (3,)])
def test_wrong_shapes(model: Mlp, quantized: nn.Module, shape: tuple[int, ...]) -> None:
    wrong = torch.zeros(shape)
    given = "x".join(map(str, shape))
    error = refused(model, quantized, wrong, MismatchError, "reference", given)
    assert isinstance(error.__cause__, RuntimeError)
    refused(model, quantized, [X, wrong], MismatchError, given)


@pytest.mark.parametrize(
    "wrong", [X.long(), X > 0, X.to(torch.complex64), np.array([["a"] * 8] * 4), np.array([[None] * 8] * 4)],
    ids="int bool complex text object".split(),
)  # fmt: skip
def test_wrong_types(model: Mlp, quantized: nn.Module, wrong: Any) -> None:
    refused(model, quantized, wrong, IncTbError, "4x8|x")
    refused(model, quantized, [X, wrong], IncTbError, "4x8|x")


def test_real_numbers_for_an_embedding() -> None:
    model = Tokens()
    refused(model, dynamic(model), X, MismatchError, "float32 4x8")


def test_a_token_that_does_not_exist() -> None:
    model = Tokens()
    ids = torch.tensor([[1, 2], [3, 99]])
    refused(model, dynamic(model), ids, MismatchError, "index out of range")
    refused(model, dynamic(model), [ids[:1], ids], MismatchError, "index out of range")


def test_rows_that_do_not_fit_together() -> None:
    model = TwoInputs()
    refused(model, dynamic(model), {"x": X, "y": X[:3]}, MismatchError, "3x8")
    refused(model, dynamic(model), {"x": [[1.0, 2.0], [3.0]], "y": X}, IncTbError, "x")


# --- models that raise ---


class Picky(nn.Module):
    """Raises for values above a limit, or for more than so many samples."""

    def __init__(self, limit: float = float("inf"), samples: int = 100) -> None:
        super().__init__()
        self.a, self.b, self.limit, self.samples = nn.Linear(8, 8), nn.Linear(8, 4), limit, samples

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        if float(x.detach().abs().max()) > self.limit or len(x) > self.samples:
            raise ValueError("this model\nis picky")
        return self.b(x)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("when", ["at once", "in a later batch", "with more than one sample"])
def test_a_model_that_raises(which: int, when: str) -> None:
    models = [Picky(), Picky()]
    batches = [X, X]
    if when == "with more than one sample":
        models[which].samples = 1
    else:
        models[which].limit = 50
        batches = [1000 * X] if when == "at once" else [X, 1000 * X]
    error = refused(*models, batches, MismatchError, ("reference", "quantized model")[which], "ValueError: this model")
    assert isinstance(error.__cause__, ValueError)


def test_a_quantized_model_that_raises_on_what_the_reference_computes() -> None:
    """Its own values are fine; those of the reference, which it is fed with, are not."""
    reference = Picky()
    quantized = copy.deepcopy(reference)
    quantized.b = Limited(quantized.b, 1e-3)
    with torch.no_grad():
        quantized.a.weight.zero_()
        quantized.a.bias.zero_()
    try:
        found = inc_tb.diagnose(reference, quantized, X)
    except IncTbError as error:
        assert "too large" in str(error)  # noqa: PT017
    else:
        assert "a" in found.ops["name"]


class Limited(nn.Module):
    def __init__(self, inner: nn.Module, limit: float) -> None:
        super().__init__()
        self.inner, self.limit = inner, limit

    def forward(self, x: Tensor) -> Tensor:
        if float(x.detach().abs().max()) > self.limit:
            raise ValueError("values are too large")
        return self.inner(x)


def test_a_graph_for_a_fixed_number_of_samples(model: Mlp) -> None:
    exported = torch.export.export(model, (X,)).module()
    assert inc_tb.diagnose(model, exported, [X, X]).samples == 8
    refused(model, exported, [X, X[:3]], MismatchError, "quantized model", "3x8")


def test_a_model_that_returns_nothing_to_compare() -> None:
    class Silent(nn.Module):
        def forward(self, x: Tensor) -> int:
            return len(x)

    refused(Silent(), Silent(), X, IncTbError, "Silent")


# --- no data ---


@pytest.mark.parametrize(
    "nothing",
    [[], (), iter([]), [X[:0]], X[:0], torch.utils.data.DataLoader([])],
    ids="list tuple iterator empty-batch empty-array loader".split(),
)
def test_no_samples(model: Mlp, quantized: nn.Module, nothing: Any) -> None:
    refused(model, quantized, nothing, DataError, "no samples", "at least one batch")


@pytest.mark.parametrize("nothing", [{}, [{}], [()], [None]], ids=str)
def test_batches_without_arrays(model: Mlp, quantized: nn.Module, nothing: Any) -> None:
    refused(model, quantized, nothing, IncTbError, "x")


@pytest.mark.parametrize("wrong", [None, 5, lambda: [X]], ids=["None", "5", "function"])
def test_what_is_no_data(model: Mlp, quantized: nn.Module, wrong: Any) -> None:
    refused(model, quantized, wrong, IncTbError, "batch")


def test_data_files(model: Mlp, quantized: nn.Module, tmp_path: Path) -> None:
    refused(model, quantized, tmp_path / "none.npz", DataError, "no such file")
    np.savez(tmp_path / "wrong.npz", z=X.numpy())
    refused(model, quantized, tmp_path / "wrong.npz", MismatchError, "'z'", "'x'")
    np.savez(tmp_path / "shape.npz", x=X.numpy()[:, :5])
    refused(model, quantized, tmp_path / "shape.npz", MismatchError, "4x5")
    np.savez(tmp_path / "right.npz", x=X.numpy())
    assert inc_tb.diagnose(model, quantized, tmp_path / "right.npz").samples == 4
