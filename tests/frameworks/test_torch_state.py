"""Models and the process are as before after a diagnosis, whatever the models are, do, or are given."""

from __future__ import annotations

import _thread
import copy
import gc
import random
import signal
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao
from torch.nn import functional

import inc_tb
from inc_tb.advise.diagnose import compare, diagnose_adapted
from inc_tb.frameworks.ops import Pair
from inc_tb.frameworks.torch.adapter import TorchAdapter
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.stats import PairStats
from tests.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*reduce_range:UserWarning"),
]
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
Pairs = dict[tuple[str, str], Pair]


@contextmanager
def not_forever() -> Iterator[None]:
    """What waits for too long is interrupted, as often as it waits again on its way out."""
    shots = 0

    def expired(_: int, frame: Any) -> None:
        nonlocal shots
        shots += 1
        waits = False
        while frame is not None:
            waits |= frame.f_code.co_filename.endswith("lockstep.py")
            frame = frame.f_back
        if waits or shots == 1:
            raise TimeoutError("the models wait for each other")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not shots, "it hung until it was interrupted"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Several in each of three models, on few cores, mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with not_forever():
        yield


@contextmanager
def unchanged(*models: Any) -> Iterator[None]:
    """Nothing about the models or the process is different afterwards, also after an error."""
    before, threads = [*map(state_of, models), process_state()], set(threading.enumerate())
    try:
        yield
    finally:
        for was, now in zip(before, [*map(state_of, models), process_state()], strict=True):
            assert set(was) == set(now)
            assert [key for key in was if was[key] != now[key]] == []
        assert set(threading.enumerate()) <= threads


def state_of(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        found[f"{path}: class"] = type(module), module.training, getattr(module, "_compiled_call_impl", None)
        found[f"{path}: names"] = sorted(vars(module)), list(module._modules)
        found[f"{path}: hooks"] = [list(getattr(module, name)) for name in HOOKS]
        for name, tensor in module._parameters.items():
            found[f"{path}.{name}"] = id(tensor), bits(tensor), None if tensor is None else bits(tensor.grad)
        for name, tensor in module._buffers.items():
            found[f"{path}.{name}"] = bits(tensor)
    return found


def bits(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return data, tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad


def process_state() -> dict[str, Any]:
    return {
        "torch's random numbers": bits(torch.get_rng_state()),
        "numpy's random numbers": repr(np.random.get_state()),
        "Python's random numbers": random.getstate(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "type": torch.get_default_dtype(),
        "modes": torch._C._len_torch_function_stack(),
        "stance": torch._dynamo.eval_frame._stance.stance if "_dynamo" in vars(torch) else "default",
    }


def dynamic(model: nn.Module, *kinds: type[nn.Module]) -> nn.Module:
    return ao.quantize_dynamic(copy.deepcopy(model).eval(), set(kinds or (nn.Linear,)), dtype=torch.qint8)


def shifted(model: nn.Module, *paths: str, by: float = 0.05) -> nn.Module:
    """A stand-in for a quantized model, with other weights at these modules."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for path in paths:
            weight = made.get_submodule(path).weight
            weight += by * weight.abs().mean()
    return made


def static_fx(model: nn.Module, x: Tensor) -> nn.Module:
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    prepared = prepare_fx(copy.deepcopy(model).eval(), ao.get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    return convert_fx(prepared)


def exported(model: nn.Module, x: Tensor) -> nn.Module:
    return torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},)).module()


def arrays(batch: Any) -> dict[str, Any]:
    return {name: value.detach().numpy() if isinstance(value, Tensor) else value for name, value in batch.items()}


def pairs_of(reference: Any, quantized: Any, **batch: Any) -> Pairs:
    """As they are once the models are done: statistics are made later than the arrays."""
    return {(p.op, p.role): p for p in TorchAdapter(reference, quantized).run(arrays(batch))}


def captured(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What every module returns, by plain hooks, in evaluation mode."""
    model, found = copy.deepcopy(model).eval(), {}

    def keep(path: str, _: nn.Module, __: Any, value: Any) -> None:
        found[path] = value.detach().clone().float().numpy() if isinstance(value, Tensor) else value

    for path, module in model.named_modules():
        module.register_forward_hook(partial(keep, path))
    with torch.no_grad():
        model(*args, **kwargs)
    return found


def same_tables(a: Diagnosis, b: Diagnosis) -> None:
    assert list(a.ops["name"]) == list(b.ops["name"])
    for column in a.ops.columns:
        if column.type == "number":
            np.testing.assert_array_equal(a.ops[column.name], b.ops[column.name], err_msg=column.name)
        else:
            assert list(a.ops[column.name]) == list(b.ops[column.name])
    assert a.suggestions == b.suggestions
    assert a.notes == b.notes
    assert a.samples == b.samples


def row(diagnosis: Diagnosis, name: str) -> dict[str, Any]:
    return next(r for r in diagnosis.ops.rows() if r["name"] == name)


def names_of(diagnosis: Diagnosis) -> list[str]:
    return list(diagnosis.ops["name"])


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.act, self.b, self.c = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(self.act(self.a(x)))))


class Cnn(nn.Module):
    """With what behaves differently in training."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace)
        self.drop = nn.Dropout(0.5)
        self.conv2 = nn.Conv2d(6, 6, 1)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.act(self.bn(self.conv(x))))
        x = functional.dropout(x + self.conv2(x), 0.3, self.training)
        return self.fc(x.mean((2, 3)))


MLP = ["a", "act", "b", "/tanh", "c"]


# --- errors and early ends ---


class Guard(nn.Module):
    """Raises for values above a limit."""

    def __init__(self, limit: float = float("inf")) -> None:
        super().__init__()
        self.limit, self.fc = limit, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if float(x.abs().max()) > self.limit:
            raise RuntimeError("values are too large")
        return self.fc(x)


class Guarded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.guard, self.last = nn.Linear(8, 8), Guard(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.guard(self.first(x)))


def guarded(which: str) -> tuple[Guarded, Guarded]:
    """One of the two raises in the middle: on the second batch, or when fed with the reference's values."""
    reference = Guarded()
    quantized = copy.deepcopy(reference)
    if which == "reference":
        reference.guard.limit = 50
    elif which == "quantized":
        quantized.guard.limit = 50
    else:
        quantized.guard.limit = 1e-3
        with torch.no_grad():
            for p in quantized.first.parameters():
                p.zero_()
    return reference.train(), quantized.train()


@pytest.mark.parametrize("which", ["reference", "quantized", "fed"])
def test_nothing_is_left_of_a_model_that_raises_in_the_middle(which: str) -> None:
    reference, quantized = guarded(which)
    batches = [torch.randn(3, 8), 1000 * torch.randn(3, 8)]
    with unchanged(reference, quantized), suppress(Exception):
        inc_tb.diagnose(reference, quantized, batches)
    adapter = TorchAdapter(reference, quantized)
    with unchanged(reference, quantized), suppress(Exception):
        for batch in batches:
            list(adapter.run({"x": batch.numpy()}))
    if which != "fed":  # the adapter still works
        with unchanged(reference, quantized):
            assert list(adapter.run({"x": batches[0].numpy()}))


@pytest.mark.parametrize("which", ["reference", "quantized"])
def test_nothing_is_left_of_a_model_that_raises_at_once(which: str) -> None:
    models, x = guarded(which), 1000 * torch.randn(3, 8)
    with unchanged(*models), suppress(Exception):
        inc_tb.diagnose(*models, x)


MAKERS: Mapping[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "dynamic": lambda model, _: dynamic(model),
    "fx": static_fx,
    "export": exported,
    "itself": lambda model, _: model,
}


@pytest.fixture(params=MAKERS, scope="module")
def models(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = Mlp().eval()
    return model.train() if request.param == "itself" else model, MAKERS[request.param](model, torch.randn(5, 8))


@pytest.mark.parametrize("count", [0, 2, 6])
def test_whoever_reads_the_pairs_may_stop(models: tuple[nn.Module, nn.Module], count: int) -> None:
    adapter = TorchAdapter(*models)
    batch = {"x": np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)}
    wanted = list(adapter.run(batch))
    with unchanged(*models):
        pairs = adapter.run(batch)
        for _ in range(count):
            next(pairs)
        pairs.close()
    with unchanged(*models):
        pairs = adapter.run(batch)
        for _ in range(count):
            next(pairs)
        with pytest.raises(ZeroDivisionError):
            pairs.throw(ZeroDivisionError())
    with unchanged(*models):
        pairs = adapter.run(batch)
        for _ in range(count):
            next(pairs)
        del pairs
        gc.collect()
    with unchanged(*models), suppress(ZeroDivisionError):
        for number, _ in enumerate(adapter.run(batch)):
            if number == count:
                raise ZeroDivisionError
    with unchanged(*models):
        next(adapter.weights(), None)
    for a, b in zip(wanted, adapter.run(batch), strict=True):
        assert a[:3] == b[:3]
        np.testing.assert_array_equal(a.quantized, b.quantized)


def test_errors_of_the_data_and_of_progress_leave_nothing(models: tuple[nn.Module, nn.Module]) -> None:
    def failing() -> Iterator[Tensor]:
        yield torch.zeros(3, 8)
        raise OSError("the disk is gone")

    def stop(samples: int) -> None:
        raise ZeroDivisionError

    with unchanged(*models), pytest.raises(OSError, match="disk"):
        compare(*models, failing())
    with unchanged(*models), pytest.raises(ZeroDivisionError):
        diagnose_adapted(TorchAdapter(*models), [torch.zeros(3, 8)], names=("", ""), progress=stop)


class Interrupting(nn.Module):
    """Somebody presses Ctrl-C while it runs."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.fc, self.end, self.left = nn.Linear(8, 8), nn.Linear(8, 4), [calls]

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        self.left[0] -= 1
        if not self.left[0]:
            _thread.interrupt_main()
            for _ in range(20):
                time.sleep(0.01)
        return self.end(torch.relu(x))


@pytest.mark.parametrize(("where", "at"), [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)])
def test_a_keyboard_interrupt_leaves_nothing(where: int, at: int) -> None:
    """While a model is traced, while it runs, and while it is fed with the reference's values."""
    models = [Interrupting(0).train(), Interrupting(0).train()]
    models[where].left[0] = at
    with unchanged(*models), pytest.raises(KeyboardInterrupt):
        inc_tb.diagnose(*models, torch.ones(3, 8))


class Swallowing(nn.Module):
    """Goes on after any error, as old code does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.end = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.first(x)
        except:  # noqa: E722
            x = torch.zeros(len(x), 8)
        return self.end(self.second(x))


class Finishing(nn.Module):
    """Computes something on its way out of an error, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.end = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.first(x)
        finally:
            x = torch.tanh(x)
        return self.end(self.second(x))


@pytest.mark.parametrize("kind", [Swallowing, Finishing])
def test_a_model_that_is_not_easily_stopped_does_not_hang(kind: type[nn.Module]) -> None:
    model = kind()
    adapter = TorchAdapter(model, dynamic(model))
    before, threads = state_of(model), threading.active_count()
    pairs = adapter.run({"x": np.ones((3, 8), np.float32)})
    assert next(pairs).op == "first"
    with not_forever():
        pairs.close()
    assert state_of(model) == before
    assert threading.active_count() == threads


class Recovering(nn.Module):
    """Catches what one of its modules raises, and takes another way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fast, self.slow, self.end = (
            nn.Linear(8, 8),
            nn.Linear(9, 8),
            nn.Sequential(nn.Linear(8, 8)),
            nn.Linear(8, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        try:
            x = self.fast(x)
        except RuntimeError:
            x = self.slow(x)
        return torch.sigmoid(self.end(x))


def test_an_error_that_a_model_catches_itself_hides_nothing() -> None:
    model = Recovering()
    quantized = dynamic(model)
    with unchanged(model):
        diagnosis = inc_tb.diagnose(model, quantized, torch.ones(3, 8))
    assert names_of(diagnosis) == ["first", "slow.0", "end", "/sigmoid"]


# --- torch's modes ---


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_modes_of_gradients_change_nothing(models: tuple[nn.Module, nn.Module], mode: Callable[[], Any]) -> None:
    x = torch.randn(5, 8)
    wanted = compare(*models, x)
    with mode(), unchanged(*models):
        found = compare(*models, x)
    same_tables(wanted, found)


def test_models_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = Mlp()
        quantized = shifted(model, "b")
    found = inc_tb.diagnose(model, quantized, torch.randn(3, 8))
    assert names_of(found) == MLP
    assert row(found, "b")["added_sqnr_db"] > 0


def test_data_made_in_inference_mode_and_with_a_history() -> None:
    model = Mlp()
    quantized = dynamic(model)
    x = torch.randn(3, 8)
    wanted = inc_tb.diagnose(model, quantized, x)
    with torch.inference_mode():
        same = x * 1
    same_tables(wanted, inc_tb.diagnose(model, quantized, same))
    same_tables(wanted, inc_tb.diagnose(model, quantized, (x.clone().requires_grad_() * 1)))


def test_no_history_is_kept() -> None:
    model = Mlp()
    adapter = TorchAdapter(model, shifted(model, "b"))
    adapter.trace({"x": np.ones((1, 8), np.float32)})
    for _, *tensors in adapter.side_by_side({"x": np.ones((3, 8), np.float32)}):
        assert not any(t.requires_grad for t in tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_under_autocast_are_autocasts(dtype: torch.dtype) -> None:
    model, x = Cnn().eval(), torch.randn(3, 3, 6, 6)
    quantized = shifted(model, "conv2")
    with torch.autocast("cpu", dtype):
        with unchanged(model, quantized):
            found = pairs_of(model, quantized, x=x)
        mine, theirs = captured(model, x), captured(quantized, x)
    exact = captured(model, x)
    for path in ("conv", "bn", "act", "conv2", "fc"):
        np.testing.assert_array_equal(found[path, "output"].reference, mine[path], err_msg=path)
        np.testing.assert_array_equal(found[path, "output"].quantized, theirs[path], err_msg=path)
    assert (found["conv2", "output"].reference != exact["conv2"]).any()
    np.testing.assert_array_equal(found["fc", "isolated"].quantized, mine["fc"])


# --- training ---


def test_models_in_training_are_compared_in_evaluation_and_stay_as_they_are() -> None:
    model, x = Cnn().train(), torch.randn(4, 3, 6, 6)
    model(x).sum().backward()
    model.bn.eval()  # frozen
    model.conv2.weight.requires_grad_(False)
    quantized = shifted(model, "fc").train()
    quantized(x).sum().backward()
    random.seed(3)
    np.random.seed(3)
    with unchanged(model, quantized):
        found = pairs_of(model, quantized, x=x)
    mine, theirs = captured(model, x), captured(quantized, x)
    for path in ("conv", "bn", "act", "conv2", "fc"):
        np.testing.assert_array_equal(found[path, "output"].reference, mine[path])
        np.testing.assert_array_equal(found[path, "output"].quantized, theirs[path])
    with unchanged(model, quantized):
        inc_tb.diagnose(model, quantized, [x, x])


def qat_model() -> tuple[nn.Module, Tensor]:
    model, x = nn.Sequential(ao.QuantStub(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), ao.DeQuantStub()), None
    model.qconfig = ao.get_default_qat_qconfig("x86")
    model = ao.fuse_modules_qat(model.train(), [["1", "2", "3"]])
    x = torch.randn(4, 3, 6, 6)
    prepared = ao.prepare_qat(model)
    prepared(x).sum().backward()
    return prepared, x


def test_training_with_fake_quantization_goes_on_undisturbed() -> None:
    model, x = qat_model()
    with unchanged(model):
        first = inc_tb.diagnose(None, model, 3 * x)
    assert float(model.get_submodule("1").activation_post_process.scale) in first.ops["act_scale"]
    twin = copy.deepcopy(model)
    with unchanged(model, twin):
        inc_tb.diagnose(twin, model, 3 * x)
    for each in (model, twin):  # the next step of the training is the same with a diagnosis in between
        each.zero_grad()
        torch.manual_seed(1)
        each(x).sum().backward()
        inc_tb.diagnose(None, each, 5 * x) if each is model else None
        each(x).sum().backward()
    a, b = state_of(model), state_of(twin)
    assert [key for key in a if "hooks" not in key and a[key][-2:] != b[key][-2:]] == []


def test_switched_off_fake_quantizers_stay_off() -> None:
    model, x = qat_model()
    model.apply(ao.disable_observer)
    with unchanged(model):
        inc_tb.diagnose(None, model, 3 * x)
    model.apply(ao.disable_fake_quant)
    with unchanged(model):
        inc_tb.diagnose(None, model, 3 * x)


@pytest.mark.parametrize("observer", ["histogram", "minmax", "fresh"])
def test_observers_do_not_see_the_data(observer: str) -> None:
    """A model that is being calibrated."""
    model = nn.Sequential(ao.QuantStub(), nn.Linear(8, 8), nn.ReLU(), ao.DeQuantStub()).eval()
    activation = ao.MinMaxObserver if observer == "minmax" else ao.HistogramObserver
    model.qconfig = ao.QConfig(activation=activation, weight=ao.default_weight_observer)
    prepared = ao.prepare(model)
    if observer != "fresh":
        prepared(torch.randn(4, 8))
    with unchanged(model, prepared):
        inc_tb.diagnose(model, prepared, 30 * torch.ones(4, 8))


class Counting(nn.Module):
    """Buffers that a forward pass changes, also in evaluation mode."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.fc, self.how = nn.Linear(8, 8), how
        self.register_buffer("count", torch.zeros((600, 600) if how == "large" else (), dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "replaced":
            self.count = self.count + 1
        else:
            self.count += 1
        return self.fc(x)


@pytest.mark.parametrize("how", ["changed", "large", "replaced"])
def test_buffers_that_a_model_changes_itself(how: str) -> None:
    model = Counting(how)
    quantized = copy.deepcopy(model)
    with unchanged(model, quantized):
        compare(model, quantized, torch.ones(3, 8))


class Noisy(nn.Module):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.fc, self.source = nn.Linear(8, 8), source

    def forward(self, x: Tensor) -> Tensor:
        if self.source == "torch":
            return self.fc(x + torch.rand_like(x))
        return self.fc(x + (np.random.rand() if self.source == "numpy" else random.random()))


@pytest.mark.parametrize("source", ["torch", "numpy", "random"])
def test_random_numbers_that_a_model_draws_are_given_back(source: str) -> None:
    model = Noisy(source)
    with unchanged(model):
        compare(model, model, torch.ones(3, 8))


def test_random_numbers_of_the_data_go_on() -> None:
    """A data source that draws gets the same numbers as without a diagnosis, not the same ones again and again."""
    model = Mlp()
    torch.manual_seed(5)
    wanted = [torch.randn(2, 8) for _ in range(3)]
    torch.manual_seed(5)
    given = []

    def batches() -> Iterator[Tensor]:
        for _ in range(3):
            given.append(torch.randn(2, 8))
            yield given[-1]

    inc_tb.diagnose(model, dynamic(model), batches())
    assert all(map(torch.equal, wanted, given))


# --- kinds of models ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_types_of_numbers(dtype: torch.dtype) -> None:
    model = Mlp().to(dtype)
    quantized = shifted(model, "b")
    x = torch.randn(3, 8, dtype=dtype)
    with unchanged(model, quantized):
        found = pairs_of(model, quantized, x=x.float() if dtype == torch.bfloat16 else x)
    model.eval()
    with torch.no_grad():
        a = model.a(x)
        b = model.b(model.act(a))
    kept = np.float64 if dtype == torch.float64 else np.float32
    assert found["a", "output"].reference.dtype == kept
    np.testing.assert_array_equal(found["a", "output"].reference, a.to(torch.float64).numpy().astype(kept))
    np.testing.assert_array_equal(found["b", "output"].reference, b.to(torch.float64).numpy().astype(kept))
    diagnosis = inc_tb.diagnose(model, quantized, x)
    assert names_of(diagnosis) == MLP
    assert row(diagnosis, "a")["added_sqnr_db"] is None  # no error
    assert row(diagnosis, "b")["added_sqnr_db"] > 0


def test_a_half_precision_model_against_fp32() -> None:
    model, x = Mlp(), torch.randn(16, 8)
    diagnosis = inc_tb.diagnose(model, copy.deepcopy(model).bfloat16(), x)
    assert 35 < row(diagnosis, "a")["added_sqnr_db"] < 70
    same_tables(diagnosis, inc_tb.diagnose(model, copy.deepcopy(model).bfloat16(), x.double()))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_real_numbers_of_any_type_fit_a_model_whose_weights_are_all_packed(kind: Any) -> None:
    """numpy makes float64 unless told otherwise."""
    model = Mlp()
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float16)
    wanted = inc_tb.diagnose(model, dynamic(model), x.astype(np.float32))
    same_tables(wanted, inc_tb.diagnose(model, dynamic(model), x.astype(kind)))


def test_the_same_object_twice() -> None:
    model, x = Cnn().train(), torch.randn(3, 3, 6, 6)
    with unchanged(model):
        diagnosis = compare(model, model, x)
    assert {"conv", "bn", "act", "conv2", "fc"} <= set(names_of(diagnosis))
    np.testing.assert_array_equal(diagnosis.ops["a_mse"], 0)
    assert any("nothing is quantized" in note for note in diagnosis.notes)


def test_models_with_modules_in_common() -> None:
    model = Mlp().train()
    quantized = copy.copy(model)
    quantized._modules = {**model._modules, "b": dynamic(nn.Sequential(model.b))[0]}
    x = torch.randn(5, 8)
    with unchanged(model, quantized):
        found = pairs_of(model, quantized, x=x)
        diagnosis = inc_tb.diagnose(model, quantized, x)
    assert names_of(diagnosis) == MLP
    wanted = captured(model, x)
    for path in ("a", "act", "b", "c"):
        np.testing.assert_array_equal(found[path, "output"].reference, wanted[path])
    np.testing.assert_array_equal(found["act", "output"].quantized, wanted["act"])
    np.testing.assert_array_equal(found["c", "isolated"].quantized, wanted["c"])
    assert (found["c", "output"].quantized != wanted["c"]).any()
    assert [r["weight_dtype"] for r in diagnosis.ops.rows()] == ["", "", "int8", "", ""]


class Repeating(nn.Module):
    """One module in two places, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.again = self.layer

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.layer(self.layer(x)))


def test_a_module_that_is_called_more_than_once() -> None:
    model, x = Repeating(), torch.randn(3, 8)
    quantized = shifted(model, "layer")
    with unchanged(model, quantized):
        diagnosis = inc_tb.diagnose(model, quantized, x)
    assert len(names_of(diagnosis)) == len(set(names_of(diagnosis))) == 3
    with torch.no_grad():
        wanted = [y := model.layer(x), y := model.layer(y), model.layer(y)]
    assert [r["a_max"] for r in diagnosis.ops.rows()] == pytest.approx([float(w.max()) for w in wanted], rel=1e-6)


def test_wrappers_of_data_parallel_training() -> None:
    model, x = Mlp(), torch.randn(3, 8)
    quantized = dynamic(model)
    wanted = inc_tb.diagnose(model, quantized, x)
    wrapped = nn.DataParallel(model)
    with unchanged(wrapped):
        found = inc_tb.diagnose(wrapped, nn.DataParallel(quantized), x)
    same_tables(wanted, found)


def test_wrapper_of_distributed_training(tmp_path: Path) -> None:
    from torch import distributed

    try:
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    except RuntimeError as error:
        pytest.skip(f"no network here: {error}")
    try:
        model, x = Mlp(), torch.randn(3, 8)
        quantized = dynamic(model)
        wanted = inc_tb.diagnose(model, quantized, x)
        wrapped = nn.parallel.DistributedDataParallel(model)
        with unchanged(wrapped):
            found = inc_tb.diagnose(wrapped, quantized, x)
        same_tables(wanted, found)
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("which", ["reference", "quantized", "both"])
@pytest.mark.parametrize("ran", [True, False])
def test_compiled_models(which: str, ran: bool) -> None:
    model, x = Mlp(), torch.randn(3, 8)
    quantized = shifted(model, "b")
    wanted = inc_tb.diagnose(model, quantized, x)
    found = model if which == "quantized" else torch.compile(model, backend="eager")
    theirs = quantized if which == "reference" else torch.compile(quantized, backend="eager")
    if ran:
        found(x), theirs(x)
    with unchanged(model, quantized):
        same_tables(wanted, inc_tb.diagnose(found, theirs, x))


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.body, self.last = nn.Linear(8, 8), Mlp(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.first(x)))


@pytest.mark.parametrize("how", ["itself", "method", "part", "part in both", "method of a part"])
def test_models_that_are_compiled_in_place_or_in_part(how: str) -> None:
    model, x = Nested(), torch.randn(3, 8)
    quantized = shifted(model, "first", "body.b")
    wanted = inc_tb.diagnose(model, quantized, x)
    if how == "method":
        model.compile(backend="eager")
    elif how == "method of a part":
        model.body.compile(backend="eager")
    elif how.startswith("part"):
        for each in (model, quantized)[: 2 if "both" in how else 1]:
            each.body = torch.compile(each.body, backend="eager")
            with torch.no_grad():
                each(x)
    with unchanged(model, quantized):
        same_tables(wanted, inc_tb.diagnose(model, quantized, x))


@torch.compile(backend="eager")
def squashed(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


class WithCompiledFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(squashed(self.first(x)))


@pytest.mark.slow
@pytest.mark.parametrize("ran", [True, False])
def test_a_compiled_function_in_a_model(ran: bool) -> None:
    torch._dynamo.reset()
    model, x = WithCompiledFunction(), torch.randn(3, 8)
    if ran:
        with torch.no_grad():
            model(x)
    found = pairs_of(model, shifted(model, "first"), x=x)
    wanted = captured(model, x)
    for path in ("first", "last"):
        np.testing.assert_allclose(found[path, "output"].reference, wanted[path], rtol=1e-6)


def test_parametrized_modules() -> None:
    from torch.nn.utils.parametrizations import weight_norm

    model = nn.Sequential(weight_norm(nn.Conv2d(3, 5, 3)), nn.ReLU(), nn.Flatten(), weight_norm(nn.Linear(80, 6)))
    x = torch.randn(3, 3, 6, 6)
    quantized = copy.deepcopy(model)
    with torch.no_grad():
        quantized[3].parametrizations.weight.original1 += 0.05
    with unchanged(model, quantized):
        found = pairs_of(model, quantized, input=x)
        diagnosis = inc_tb.diagnose(model, quantized, x)
    assert names_of(diagnosis) == ["0", "1", "3"]
    wanted = captured(model, x)
    for path in names_of(diagnosis):
        np.testing.assert_allclose(found[path, "output"].reference, wanted[path], rtol=1e-6, atol=1e-7)
    assert row(diagnosis, "3")["w_max"] == pytest.approx(float(model[3].weight.detach().max()))
    assert row(diagnosis, "3")["w_mse"] > 0
    assert row(diagnosis, "0")["w_mse"] == 0
    assert row(diagnosis, "0")["params"] == 5 * 3 * 9


def test_parametrizations_that_learn_when_their_weights_are_read() -> None:
    """Spectral norm goes on with its estimate whenever a module in training is asked for its weights."""
    from torch.nn.utils.parametrizations import spectral_norm

    model, x = nn.Sequential(spectral_norm(nn.Linear(8, 6)), nn.ReLU(), nn.Linear(6, 4)).train(), torch.randn(3, 8)
    quantized = copy.deepcopy(model)
    with unchanged(model, quantized):
        compare(model, quantized, x)


def test_a_reference_that_is_fused_already() -> None:
    """fuse_modules works in place for many, so that this is the only fp32 model they have."""
    model = nn.Sequential(ao.QuantStub(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), ao.DeQuantStub()).eval()
    model.qconfig = ao.get_default_qconfig("x86")
    fused, x = ao.fuse_modules(model, [["1", "2", "3"]]), torch.randn(4, 3, 6, 6)
    prepared = ao.prepare(fused)
    prepared(x)
    quantized = ao.convert(prepared)
    with unchanged(fused, quantized):
        found = inc_tb.diagnose(fused, quantized, x)
    measured = [r for r in found.ops.rows() if r["total_sqnr_db"] is not None]
    assert [r["weight_dtype"] for r in measured] == ["int8"]
    with torch.no_grad():
        assert measured[0]["a_max"] == pytest.approx(float(fused(x).max()), rel=1e-5)


class OwnConv(nn.Conv2d):
    """Standardized weights, as in BiT."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


def test_channels_of_parametrized_and_derived_convolutions() -> None:
    from torch.nn.utils.parametrizations import weight_norm

    model = nn.Sequential(weight_norm(nn.Conv2d(3, 5, 3)), nn.ReLU(), OwnConv(5, 4, 3), nn.ReLU())
    found = pairs_of(model, shifted(model, "2"), input=torch.randn(2, 3, 8, 8))
    assert {op: p.channel_axis for (op, role), p in found.items() if role == "output"} == dict.fromkeys("0123", 1)


def test_channels_of_modules_fused_for_training() -> None:
    model, x = qat_model()
    found = [p for p in TorchAdapter(None, model).run({"input": x.numpy()}) if p.role == "output"]
    assert found
    assert {p.channel_axis for p in found if p.reference.ndim == 4} == {1}


class Transposing(nn.Module):
    """Channels first, then last: as in front of a speech model."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv1d(3, 6, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.conv(x).transpose(1, 2))
        return torch.sigmoid(self.fc(x).transpose(1, 2))


def test_channels_move_with_a_transposition() -> None:
    model = Transposing()
    found = pairs_of(model, shifted(model, "conv"), x=torch.randn(2, 3, 9))
    axes = {op: p.channel_axis % 3 for (op, role), p in found.items() if role == "output"}
    assert axes == {"conv": 1, "/gelu": 2, "fc": 2, "/sigmoid": 1}


# --- memory and in-place ops ---


@pytest.mark.parametrize("how", ["sliced", "transposed", "channels_last", "model", "expanded"])
def test_the_layout_of_memory_does_not_matter(how: str) -> None:
    model, x = Cnn().eval(), torch.randn(4, 3, 6, 6)
    if how == "expanded":
        x = x[:1].expand(4, 3, 6, 6)
    quantized = shifted(model, "conv", "fc")
    plain = inc_tb.diagnose(model, quantized, x.contiguous())
    if how == "sliced":
        wide = torch.zeros(4, 3, 6, 12)
        wide[..., ::2] = x
        x = wide[..., ::2]
    elif how == "transposed":
        x = x.transpose(2, 3).contiguous().transpose(2, 3)
    elif how == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    elif how == "model":
        model, quantized = (m.to(memory_format=torch.channels_last) for m in (model, quantized))
    assert how == "model" or not x.is_contiguous()
    with unchanged(model, quantized):
        found = inc_tb.diagnose(model, quantized, x)
    assert names_of(found) == names_of(plain)
    for column in ("a_min", "a_max", "a_mse", "total_sqnr_db", "a_channel_ratio", "a_worst_channel"):
        np.testing.assert_allclose(found.ops[column], plain.ops[column], rtol=1e-3, atol=1e-6, err_msg=column)


class InPlace(nn.Module):
    """Changes what it got from its own modules, and what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.conv2, self.fc = (
            nn.Conv2d(3, 6, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(6, 6, 1),
            nn.Linear(6, 4),
        )
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x -= 1
        x = self.act(self.conv(x))
        y = self.conv2(x)
        y += x
        y[:, 0] = 0
        y.clamp_(max=1)
        z = self.fc(y.mean((2, 3)))
        z.view(-1)[0] = 5
        out = self.last(z)
        out[:, 1] = -3
        return out


def test_values_are_those_before_they_are_changed_in_place() -> None:
    model, x = InPlace().eval(), torch.randn(3, 3, 6, 6)
    quantized = shifted(model, "conv")
    mine, theirs = captured(model, x.clone()), captured(quantized, x.clone())
    given = x.clone()
    found = pairs_of(model, quantized, x=given)
    assert torch.equal(given, x)
    for path in ("conv", "act", "conv2", "fc", "last"):
        for role, values in (("output", theirs), ("isolated", mine if path != "conv" else theirs)):
            pair = found[path, role]
            np.testing.assert_allclose(pair.reference, mine[path], rtol=1e-5, atol=1e-6, err_msg=path)
            np.testing.assert_allclose(pair.quantized, values[path], rtol=1e-5, atol=1e-6, err_msg=f"{path} {role}")


@pytest.mark.parametrize("form", ["fx", "export"])
@pytest.mark.parametrize("which", ["quantized", "both"])
def test_in_place_activations_in_graphs(which: str, form: str) -> None:
    """As in the models of torchvision."""
    model, x = Cnn(inplace=True).eval(), torch.randn(3, 3, 6, 6)
    quantized = shifted(model, "conv")
    mine, theirs = captured(model, x), captured(quantized, x)
    graph = torch.fx.symbolic_trace if form == "fx" else partial(exported, x=x)
    found = pairs_of(model if which == "quantized" else graph(model), graph(quantized), x=x)
    for path in ("conv", "bn", "act", "conv2", "fc"):
        np.testing.assert_allclose(found[path, "output"].reference, mine[path], rtol=1e-5, atol=1e-6, err_msg=path)
        np.testing.assert_allclose(found[path, "output"].quantized, theirs[path], rtol=1e-5, atol=1e-6, err_msg=path)


# --- leaves and outputs ---

Named = namedtuple("Named", "first second")


@dataclass
class Bundle:
    first: Any
    second: Any = None


class Leaf(nn.Module):
    """A layer of one's own, with weights but no modules, which returns what it likes."""

    def __init__(self, pack: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.weight, self.pack = nn.Parameter(torch.randn(8, 8)), pack

    def forward(self, x: Tensor) -> Any:
        return self.pack(x @ self.weight.t())


class WithLeaf(nn.Module):
    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.leaf, self.unpack, self.fc = Leaf(pack), unpack, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.unpack(self.leaf(x)))


PACKINGS: Mapping[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tensor": (lambda y: y, lambda o: o),
    "tuple": (lambda y: (y, None), lambda o: o[0]),
    "list": (lambda y: [3, y], lambda o: o[1]),
    "named tuple": (lambda y: Named(None, y), lambda o: o.second),
    "nested": (lambda y: ((y, 1), {}), lambda o: o[0][0]),
    "dict": (lambda y: {"n": 1, "y": y}, lambda o: o["y"]),
    "dataclass": (lambda y: Bundle(y), lambda o: o.first),
    "behind whole numbers": (lambda y: (y.argmax(-1), y), lambda o: o[1]),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_leaf_modules_of_ones_own(packing: str) -> None:
    model, x = WithLeaf(*PACKINGS[packing]), torch.randn(3, 8)
    quantized = shifted(model, "leaf", by=0.1)
    with unchanged(model, quantized):
        found = pairs_of(model, quantized, x=x)
    wanted, theirs = captured(model, x), captured(quantized, x)
    leaf = x.numpy() @ model.leaf.weight.detach().numpy().T
    np.testing.assert_allclose(found["leaf", "output"].reference, leaf, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["fc", "output"].reference, wanted["fc"])
    np.testing.assert_array_equal(found["fc", "output"].quantized, theirs["fc"])
    np.testing.assert_array_equal(found["fc", "isolated"].quantized, wanted["fc"])  # fc itself adds nothing


class LastState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        _, (state, _) = self.lstm(x)
        return self.fc(state[-1])


def test_what_reads_the_second_result_of_a_layer_is_fed_with_the_references() -> None:
    """fc is the same in both models, so it adds nothing; the LSTM does."""
    model, x = LastState(), torch.randn(3, 5, 8)
    found = pairs_of(model, dynamic(model, nn.LSTM), x=x)
    assert (found["lstm", "isolated"].quantized != found["lstm", "isolated"].reference).any()
    np.testing.assert_allclose(found["fc", "isolated"].quantized, found["fc", "isolated"].reference, atol=1e-6)


# --- what they take ---


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: Any = None, bias: Any = None) -> Tensor:
        x = self.fc(x)
        if mask is not None:
            x = x.masked_fill(~mask, 0.0)
        x = x if scale is None else x * scale
        return x if bias is None else x + bias


def test_optional_and_keyword_inputs() -> None:
    model, x = Optional(), torch.randn(3, 8)
    quantized = dynamic(model)
    mask, bias = torch.rand(3, 8) > 0.5, torch.randn(8)
    alone = inc_tb.diagnose(model, quantized, x)
    assert names_of(alone) == ["fc"]
    same_tables(alone, inc_tb.diagnose(model, quantized, {"x": x, "mask": None, "scale": None}))
    same_tables(alone, inc_tb.diagnose(model, quantized, [[x]]))
    for given in ({"x": x, "mask": mask, "scale": 2.0}, {"scale": np.float32(2), "mask": mask.numpy(), "x": x}):
        found = inc_tb.diagnose(model, quantized, given)
        assert names_of(found) == ["fc", "/masked_fill", "/mul"]
        wanted = (model.fc(x).masked_fill(~mask, 0.0) * 2).detach()
        assert row(found, "/mul")["a_max"] == pytest.approx(float(wanted.max()), rel=1e-6)
    found = inc_tb.diagnose(model, quantized, {"x": x, "bias": bias})
    assert names_of(found) == ["fc", "/add"]


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)


class OnlyByName(Takes):
    def forward(self, *, x: Tensor) -> Tensor:
        return self.fc(x)


class OnlyByPosition(Takes):
    def forward(self, x: Tensor, /, scale: float = 1.0) -> Tensor:
        return self.fc(x) * scale


class AnyNumber(Takes):
    def forward(self, *x: Tensor) -> Tensor:
        return self.fc(torch.cat(x))


class AnyNames(Takes):
    def forward(self, **inputs: Tensor) -> Tensor:
        return self.fc(torch.cat(list(inputs.values())))


class PassesOn(nn.Module):
    """As wrappers of all kinds do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OnlyX()

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.inner(*args, **kwargs)


class OnlyX(Takes):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


@pytest.mark.parametrize("kind", [OnlyByName, OnlyByPosition, AnyNumber, AnyNames, PassesOn, OnlyX])
def test_one_array_fits_whatever_the_one_input_is_called(kind: type[nn.Module]) -> None:
    model, x = kind(), torch.randn(3, 8)
    found = inc_tb.diagnose(model, dynamic(model), x)
    name = next(name for name in names_of(found) if name.endswith("fc"))
    assert row(found, name)["total_sqnr_db"] > 20


def test_any_number_of_inputs_by_position() -> None:
    model, x = AnyNumber(), torch.randn(3, 8)
    found = inc_tb.diagnose(model, dynamic(model), [(x, x + 1)])
    assert row(found, "fc")["total_sqnr_db"] > 20
    found = inc_tb.diagnose(model, dynamic(model), [{"a": x, "b": x + 1}])
    assert row(found, "fc")["total_sqnr_db"] > 20


def test_any_inputs_by_name() -> None:
    model, x = AnyNames(), torch.randn(3, 8)
    found = inc_tb.diagnose(model, dynamic(model), [{"a": x, "b": x + 1}])
    wanted = model.fc(torch.cat([x, x + 1])).detach()
    assert row(found, "fc")["a_max"] == pytest.approx(float(wanted.max()), rel=1e-6)
    found = inc_tb.diagnose(PassesOn(), PassesOn(), {"x": x})
    assert names_of(found) == ["inner.fc"]


class Mixed(nn.Module):
    """Whole numbers, truth values, a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.fc = nn.Embedding(20, 8), nn.Linear(8, 4)

    def forward(self, ids: Tensor, mask: Tensor, count: Tensor) -> Tensor:
        assert ids.dtype in (torch.int64, torch.int32)
        assert mask.dtype == torch.bool
        return self.fc((self.embedding(ids) * mask[..., None]).sum(1) / count)


@pytest.mark.parametrize("form", ["tensors", "arrays", "int32", "tuple", "list"])
def test_whole_numbers_truth_values_and_single_numbers(form: str) -> None:
    model = Mixed()
    ids, mask = torch.randint(0, 20, (3, 5)), torch.rand(3, 5) > 0.3
    given: Any = {"ids": ids, "mask": mask, "count": 5}
    if form == "arrays":
        given = {"ids": ids.numpy(), "mask": mask.numpy(), "count": np.float64(5)}
    elif form == "int32":
        given["ids"] = ids.int()
    elif form != "tensors":
        given = [(ids, mask, 5.0)] if form == "tuple" else [[ids, mask, torch.tensor(5)]]
    found = inc_tb.diagnose(model, dynamic(model), given)
    assert names_of(found) == ["embedding", "/mul", "/sum", "/div", "fc"]
    assert found.samples == 3
    wanted = model(ids, mask, torch.tensor(5.0)).detach()
    assert row(found, "fc")["a_max"] == pytest.approx(float(wanted.max()), rel=1e-5)


FORMS: Mapping[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: x,
    "array": lambda x: x.numpy(),
    "dict": lambda x: {"x": x},
    "list of dicts": lambda x: [{"x": x}],
    "list of tensors": lambda x: [x[:2], x[2:]],
    "tuple of tuples": lambda x: ((x[:3],), (x[3:],)),
    "generator": lambda x: (part for part in x.split(1)),
    "loader": lambda x: torch.utils.data.DataLoader(x, batch_size=2),
    "loader of lists": lambda x: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=2),
    "loader of dicts": lambda x: torch.utils.data.DataLoader([{"x": sample} for sample in x], batch_size=3),
}


@pytest.mark.parametrize("form", FORMS)
def test_batches_come_in_many_forms(form: str) -> None:
    model, x = Mlp(), torch.randn(6, 8)
    quantized = shifted(model, "b")
    wanted = inc_tb.diagnose(model, quantized, x)
    found = inc_tb.diagnose(model, quantized, FORMS[form](x))
    assert found.samples == 6
    for column in ("a_min", "a_max", "a_mse", "total_sqnr_db"):
        np.testing.assert_allclose(found.ops[column], wanted.ops[column], rtol=1e-4, atol=1e-9)


def test_a_loader_with_workers_and_a_shuffle() -> None:
    model, x = Mlp(), torch.randn(6, 8)
    data = torch.utils.data.TensorDataset(x)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(0))
    with unchanged(model):
        assert inc_tb.diagnose(model, shifted(model, "b"), loader).samples == 6


def test_what_a_tokenizer_returns() -> None:
    from transformers import BatchEncoding

    model = Mixed()
    ids, mask = torch.randint(0, 20, (3, 5)), torch.rand(3, 5) > 0.3
    wanted = inc_tb.diagnose(model, dynamic(model), {"ids": ids, "mask": mask, "count": torch.tensor(5)})
    given = BatchEncoding({"ids": ids, "mask": mask, "count": torch.tensor(5)})
    same_tables(wanted, inc_tb.diagnose(model, dynamic(model), given))
    same_tables(wanted, inc_tb.diagnose(model, dynamic(model), [given]))


def test_batches_of_different_sizes_are_one_set_of_samples(models: tuple[nn.Module, nn.Module]) -> None:
    x = torch.randn(7, 8)
    found = compare(*models, [x[:1], x[1:4], x[4:6], x[6:]])
    wanted = compare(*models, x)
    assert found.samples == wanted.samples == 7
    for column in ("a_min", "a_max", "a_mean"):
        np.testing.assert_allclose(found.ops[column], wanted.ops[column], rtol=1e-4, atol=1e-6)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.q, self.k = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1) @ x


def test_sequences_of_different_lengths() -> None:
    model = Attention()
    batches = [torch.randint(0, 20, (size, length)) for size, length in ((2, 5), (3, 9), (1, 1), (2, 9))]
    with unchanged(model):
        found = inc_tb.diagnose(model, dynamic(model), batches)
    assert found.samples == 8
    wanted = [captured(model, ids) for ids in batches]
    for name in ("q", "k"):
        assert row(found, name)["a_max"] == pytest.approx(max(w[name].max() for w in wanted), rel=1e-6)
    assert row(found, "/softmax")["a_max"] == pytest.approx(1)
    assert not any(np.isnan(found.ops["total_sqnr_db"][names_of(found).index(name)]) for name in ("q", "k", "/matmul"))


def test_an_empty_last_batch_counts_for_nothing(models: tuple[nn.Module, nn.Module]) -> None:
    x = torch.randn(4, 8)
    same_tables(compare(*models, [x]), compare(*models, [x, x[:0]]))


def test_an_empty_first_batch_counts_for_nothing() -> None:
    model, x = Mlp(), torch.randn(4, 8)
    quantized = dynamic(model)
    wanted, found = (inc_tb.diagnose(model, quantized, batches) for batches in ([x], [x[:0], x]))
    for a, b in zip(wanted.histograms, found.histograms, strict=True):
        assert (a.op, a.role, a.reference) == (b.op, b.role, b.reference)


def test_an_empty_batch_that_a_model_cannot_take_counts_for_nothing() -> None:
    model, x = Guarded(), torch.randn(4, 8)  # max() of nothing raises
    same_tables(compare(model, model, [x]), compare(model, model, [x, x[:0]]))


def test_twice_the_same(models: tuple[nn.Module, nn.Module]) -> None:
    x = torch.randn(6, 8)
    first, second = (compare(*models, [x[:2], x[2:]]) for _ in range(2))
    same_tables(first, second)
    assert first.histograms == second.histograms
    assert first.channels == second.channels


# --- odd behavior ---


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.up, self.down, self.end = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        x = self.up(x) if float(x.detach().sum()) > 0 else self.down(x)
        return self.end(x)


def branching() -> Branching:
    model = Branching()
    with torch.no_grad():
        model.fc.weight.copy_(torch.eye(8))
        model.fc.bias.zero_()
    return model


def test_a_branch_that_depends_on_the_data() -> None:
    model = branching()
    batches = [torch.rand(4, 8), -torch.rand(4, 8), torch.rand(3, 8)]
    with unchanged(model):
        found = inc_tb.diagnose(model, dynamic(model), batches)
    wanted = [captured(model, x) for x in batches]
    for name, seen in (("fc", wanted), ("up", [wanted[0], wanted[2]]), ("end", wanted)):
        assert row(found, name)["a_max"] == pytest.approx(max(w[name].max() for w in seen), rel=1e-6), name
        assert row(found, name)["total_sqnr_db"] > 20
    said = " ".join([*names_of(found), *found.notes])
    assert "down" in said, "an op that only later batches use has a row, or a note says that it was left out"


def test_models_that_take_different_branches() -> None:
    model = branching()
    quantized = copy.deepcopy(model)
    with torch.no_grad():
        quantized.fc.bias -= 2
    x = torch.rand(4, 8)
    with unchanged(model, quantized):
        found = inc_tb.diagnose(model, quantized, [x])
    assert row(found, "fc")["a_mse"] == pytest.approx(4, rel=1e-3)
    assert "counterpart" in found.missing["up"]


class Poisoned(nn.Module):
    def __init__(self, at: float, value: float) -> None:
        super().__init__()
        self.a, self.b, self.c, self.at, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4), at, value

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x))
        return self.c(x.masked_fill(x > self.at, self.value))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["reference", "quantized", "both"])
def test_values_that_are_not_finite(where: str, value: float) -> None:
    healthy = Poisoned(float("inf"), value)
    broken = copy.deepcopy(healthy)
    broken.at = 0.5
    models = broken if where != "quantized" else healthy, broken if where != "reference" else healthy
    x = torch.randn(6, 8)
    with unchanged(*models):
        found = compare(*models, x)
    assert row(found, "a")["a_mse"] == 0
    said = any("NaN or infinite" in note for note in found.notes)
    assert said == (where != "quantized")
    assert any(s.rule == "non_finite" for s in found.suggestions) == (where == "quantized")


@pytest.mark.parametrize("count", [1, 2])
def test_numbers_of_threads_stay(count: int) -> None:
    model, seen = Mlp(), set()
    model.a.register_forward_hook(lambda *_: seen.add(torch.get_num_threads()))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        with unchanged(model):
            compare(model, model, torch.ones(3, 8))
        assert torch.get_num_threads() == count
        assert seen == {count}  # inside of the models, too
    finally:
        torch.set_num_threads(before)


def test_a_diagnosis_in_another_thread() -> None:
    model, x = Mlp(), torch.randn(3, 8)
    quantized = dynamic(model)
    wanted, found = inc_tb.diagnose(model, quantized, x), []
    worker = threading.Thread(target=lambda: found.append(inc_tb.diagnose(model, quantized, x)))
    with unchanged(model, quantized):
        worker.start()
        worker.join(20)
        assert not worker.is_alive()
    same_tables(wanted, found[0])


# --- kinds of tensors ---

VALUES = torch.tensor([[-1.0, 0.5, 2.0], [0.25, -3.0, 1.5]])
TENSORS: Mapping[str, Callable[[], Tensor]] = {
    "float32": lambda: VALUES,
    "float64": VALUES.double,
    "bfloat16": VALUES.bfloat16,
    "float16": VALUES.half,
    "float8": lambda: VALUES.to(torch.float8_e4m3fn),
    "qint8": lambda: torch.quantize_per_tensor(VALUES, 0.25, 0, torch.qint8),
    "quint8": lambda: torch.quantize_per_tensor(VALUES, 0.25, 20, torch.quint8),
    "qint32": lambda: torch.quantize_per_tensor(VALUES, 0.25, 0, torch.qint32),
    "qint8 by channel": lambda: torch.quantize_per_channel(
        VALUES, torch.tensor([0.25, 0.125, 0.5]), torch.tensor([0, 3, 1]), 1, torch.qint8
    ),
    "with a history": lambda: VALUES.clone().requires_grad_() * 1,
    "parameter": lambda: nn.Parameter(VALUES),
    "not contiguous": lambda: VALUES.t().contiguous().t(),
    "inference": lambda: inference(VALUES),
    "sparse": VALUES.to_sparse,
    "negative bit": lambda: torch.complex(torch.zeros(2, 3), -VALUES).conj().imag,
}


def inference(values: Tensor) -> Tensor:
    with torch.inference_mode():
        return values.clone()


@pytest.mark.parametrize("kind", TENSORS)
def test_statistics_take_tensors(kind: str) -> None:
    given = TENSORS[kind]()
    assert kind != "negative bit" or given.is_neg()
    wanted, found = PairStats(1), PairStats(1)
    wanted.update(VALUES.numpy() + 1, VALUES.numpy())
    found.update(VALUES + 1, given)
    np.testing.assert_array_equal(found.sums, wanted.sums)
    np.testing.assert_array_equal(found.extremes, wanted.extremes)
    turned = PairStats(1)
    turned.update(given, VALUES + 1)
    assert turned.total("x") == wanted.total("y")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool])
def test_statistics_take_whole_numbers(dtype: torch.dtype) -> None:
    given = torch.tensor([0, 1, 1, 0]).to(dtype)
    stats = PairStats()
    stats.update(given, given)
    assert stats.total("x") == 2
    assert stats.total("e2") == 0


@pytest.mark.parametrize("kind", TENSORS)
def test_batches_may_be_tensors_of_any_kind(kind: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    quantized = shifted(model, "0", "2")
    wanted = inc_tb.diagnose(model, quantized, VALUES)
    same_tables(wanted, inc_tb.diagnose(model, quantized, TENSORS[kind]()))
    same_tables(wanted, inc_tb.diagnose(model, quantized, [{"input": TENSORS[kind]()}]))


def test_with_nothing_else_going_on() -> None:
    """The helper of these tests notices what it is for."""
    model = Mlp()
    with pytest.raises(AssertionError), unchanged(model):
        model.a.register_forward_hook(lambda *_: None)
    with pytest.raises(AssertionError), unchanged(model), nullcontext():
        torch.rand(1)
    with pytest.raises(AssertionError), unchanged(model), torch.no_grad():
        model.a.weight += 1
