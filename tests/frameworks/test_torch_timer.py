"""Time per op of PyTorch models; nothing here depends on how fast the machine is."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import inc_tb
from inc_tb.errors import MismatchError, UsageError
from inc_tb.frameworks.protocols import Execution
from inc_tb.frameworks.torch.runners import open_runner
from inc_tb.frameworks.torch.timer import TorchTimer, name_twins
from inc_tb.profiling.run import profile
from tests.frameworks import torch_zoo as zoo
from tests.frameworks.torch_zoo import Feeds, Models
from tests.waiting import PATIENCE_S

pytestmark = zoo.MARKS
IMAGES, ROWS, TOKENS = zoo.images(), zoo.rows(), zoo.tokens()


class Mixed(nn.Module):
    """Modules called twice, leaves with modules inside, changes in place, tied weights; a dict of a tuple out."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(32, 32), nn.ReLU(inplace=True)
        self.attn = nn.MultiheadAttention(32, 4, batch_first=True)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.out = nn.Linear(32, 32)
        self.out.weight = self.fc.weight

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.act(self.fc(self.act(self.fc(x.unsqueeze(1)))))
        y, _ = self.lstm(self.attn(x, x, x)[0])
        y = y.add_(x)
        y[:, 0] = 0
        return {"found": self.out(y), "more": (x.mean(), y)}


def bert() -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=20, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16,
    )  # fmt: skip
    return zoo.made(lambda: BertModel(config))


def torchao_config(name: str) -> Any:
    import torchao.quantization

    return getattr(torchao.quantization, name)()


def pair(kind: Callable[[], nn.Module], quantize: Callable[[Any], Any], batch: Feeds) -> Models:
    model = zoo.made(kind)
    return Models(model, quantize(model), batch)


CASES: dict[str, Callable[[], Models]] = {
    "static": lambda: pair(zoo.Cnn, lambda m: zoo.static(m, IMAGES), IMAGES),
    "dynamic": lambda: pair(zoo.Tokens, zoo.dynamic, TOKENS),
    "mixed": lambda: pair(Mixed, lambda m: zoo.dynamic(m, nn.Linear), ROWS),
    "fx": lambda: zoo.functional_models("fx"),
    "pt2e": lambda: zoo.functional_models("pt2e"),
    "pt2e-dynamic": lambda: zoo.functional_models("pt2e-dynamic"),
    "pt2e-exported": lambda: zoo.functional_models("pt2e")._replace(
        reference=zoo.exported(zoo.made(zoo.Functional), IMAGES)
    ),
    "qat": lambda: pair(zoo.Cnn, lambda m: zoo.qat(m, IMAGES), IMAGES),
    "qat-fx": lambda: pair(zoo.Cnn, lambda m: zoo.qat_fx(m, IMAGES), IMAGES),
    "weight-only": lambda: pair(zoo.Mlp, lambda m: zoo.torchao(m, torchao_config("Int8WeightOnlyConfig")), ROWS),
    "torchao-dynamic": lambda: pair(
        zoo.Mlp, lambda m: zoo.torchao(m, torchao_config("Int8DynamicActivationInt8WeightConfig")), ROWS
    ),
    "bert": lambda: Models(bert(), zoo.dynamic(bert()), {"input_ids": TOKENS["ids"]}),
}
made = cache(lambda name: CASES[name]())


@cache
def recorded(name: str) -> tuple[list[Execution], dict[str, bytes]]:
    """One run of the quantized model."""
    models = made(name)
    timer = TorchTimer(models.quantized, models.batch, like=models.reference)
    assert timer.is_quantized
    timer.run_profiled(timer.prepare(models.batch))
    return timer.close()[0].executions, timer.traces


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_timed_once_and_in_order(name: str) -> None:
    models = made(name)
    found, _ = recorded(name)
    reference, quantized = (zoo_module(m) for m in models[:2])
    runner = open_runner(quantized, open_runner(reference).leaves)
    with torch.no_grad():
        steps = runner.trace(zoo.given(models.batch)).steps
    assert all(len(execution.kernel.ops) == 1 for execution in found)
    computed = [execution.kernel for execution in found if not execution.kernel.is_conversion]
    assert list(dict.fromkeys(k.ops[0] for k in computed)) == [step.name for step in steps]
    starts = [execution.start_us for execution in found]
    assert starts == sorted(starts)
    assert all(e.duration_us >= 0 for e in found)
    assert all(a.start_us + a.duration_us <= b.start_us + 1e-3 for a, b in pairwise(found))


def zoo_module(model: Any) -> Any:
    return model.module() if isinstance(model, torch.export.ExportedProgram) else model


@pytest.mark.parametrize("name", CASES)
def test_rows_are_named_as_in_a_diagnosis(name: str) -> None:
    models = made(name)
    found = profile(models.reference, [models.batch], quantized=models.quantized, runs=2, warmup=0)
    rows = [row for row in found.rows if row.op]
    names = [name for row in rows for name in (row.op, *row.ops)]
    assert sorted(names) == sorted(inc_tb.diagnose(models.reference, models.quantized, [models.batch]).ops["name"])
    assert all(row.fp32_us is not None and row.int8_us is not None for row in rows)
    assert found.framework == "torch"


CONVERSIONS = {
    "static": {"conv1": ["Quantize"], "fc": ["DeQuantize"]},
    "fx": {
        "conv": ["quantize_per_tensor"], "/add": ["dequantize"], "up": ["quantize_per_tensor"],
        "/matmul": ["dequantize"], "/matmul_1": ["quantize_per_tensor"], "/mean": ["dequantize"],
    },
    "pt2e-dynamic": {
        op: ["dequantize_per_channel", "choose_qparams", "quantize_per_tensor", "dequantize_per_tensor"][i:]
        for op, i in {"conv": 0, "block.a": 0, "block.b": 0, "up": 0, "down": 0, "block/add": 1}.items()
    },
    "qat": {"conv1": ["QuantStub"], "/add": ["FusedMovingAvgObsFakeQuantize"]},
    "qat-fx": {
        op: ["FusedMovingAvgObsFakeQuantize"] * (1 + (op in ("conv1", "gap")))
        for op in ("conv1", "pool", "block.conv", "conv3", "/add", "gap", "fc")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_are_told_apart(name: str) -> None:
    found: dict[str, list[str]] = {}
    for kernel in (execution.kernel for execution in recorded(name)[0]):
        if kernel.is_conversion:
            found.setdefault(kernel.ops[0], []).append(kernel.type)
    if name == "pt2e-dynamic":  # one rounding serves both readers of the same value
        found["block.a"] += found["block/add"]
    assert found == CONVERSIONS[name]


def test_fp32_has_no_conversions() -> None:
    for name in ("static", "fx", "bert", "pt2e-exported"):
        timer = TorchTimer(made(name).reference, made(name).batch)
        timer.run_profiled(timer.prepare(made(name).batch))
        assert not any(execution.kernel.is_conversion for execution in timer.close()[0].executions)
        assert not timer.is_quantized


def test_fused_ops_have_twins() -> None:
    found = name_twins(*made("static"))
    assert found["conv1"] == ["conv1", "bn1", "relu1"]
    assert name_twins(*made("mixed"))["fc/2"] == ["fc/2"]


@pytest.mark.parametrize("name", ["static", "pt2e"])
def test_torchs_own_trace_has_the_names(name: str) -> None:
    found, traces = recorded(name)
    events = json.loads(traces["pt.trace.json"])["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert not any(n.startswith("inc_tb") for n in names)
    assert any(n.startswith("aten::") for n in names)
    for execution in found:
        assert execution.kernel.name in names


class Net(nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        layers = [
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
            for _ in range(4)
        ]
        self.stem, self.blocks, self.fc = nn.Conv2d(3, channels, 3), nn.Sequential(*layers), nn.Linear(channels, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


def test_attention_is_timed_without_its_fast_path() -> None:
    """Which plain runs would take and profiled ones not; dynamic int8 fails there."""
    model, x = zoo.made(Encoder), np.ones((1, 4, 128), np.float32)
    found = profile(model, [{"x": x}], quantized=zoo.dynamic(model, nn.Linear), runs=1, warmup=0)
    assert sum("fast path" in note for note in found.notes) == 1
    assert {"layers.0.self_attn", "layers.1.linear2", "/tanh_1"} <= {row.op for row in found.rows}


def test_a_model_beside_itself() -> None:
    model = zoo.made(Net).train()
    before = zoo.state(model)
    found = profile(model, [zoo.images(2, size=16)], quantized=model, runs=2, threads=1)
    assert all(row.fp32_us is not None and row.int8_us is not None for row in found.rows)
    check_same(before, zoo.state(model))


def check_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)


def around() -> dict[str, Any]:
    """What is not the model's and must be as before."""
    return {
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "profiler": torch.autograd._profiler_enabled(),
        "modes": torch.overrides._get_current_function_mode_stack(),
        "environment": os.environ.get("KINETO_LOG_LEVEL"),
        "numbers": (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())),
    }


@pytest.mark.parametrize("name", ["static", "mixed", "fx", "pt2e", "qat", "qat-fx", "bert"])
def test_nothing_is_changed(name: str) -> None:
    models = [trained_in_part(zoo_module(m)) for m in made(name)[:2]]
    before, surroundings = [zoo.state(m) for m in models], around()
    profile(models[0], [made(name).batch], quantized=models[1], runs=2, threads=2)
    assert around() == surroundings
    for model, was in zip(models, before, strict=True):
        check_same(was, zoo.state(model))


def trained_in_part(model: nn.Module) -> nn.Module:
    if isinstance(model, torch.fx.GraphModule):
        return model
    found = copy.deepcopy(model)
    for module in list(found.modules())[::2]:
        module.training = True
    return found


def test_threads() -> None:
    seen: list[int] = []

    class Looking(zoo.Mlp):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.get_num_threads())
            return super().forward(x)

    before = torch.get_num_threads()
    assert profile(zoo.made(Looking), [ROWS], runs=2, threads=before + 1).threads == before + 1
    assert set(seen) == {before + 1}
    assert torch.get_num_threads() == before


class Failing(nn.Module):
    """Fails in its n-th call, and in all that follow."""

    def __init__(self, error: BaseException, calls: int) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(32, 4), nn.Dropout()
        self.error, self.calls = error, calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls -= 1
        x = self.fc(x)
        if self.calls < 0:
            raise self.error
        return self.drop(x.relu())


@pytest.mark.parametrize("calls", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("raised", "expected"),
    [(ValueError("too hot\nsecond line"), MismatchError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_a_failing_model_is_left_as_it_was(raised: BaseException, expected: type[BaseException], calls: int) -> None:
    model = Failing(raised, calls).train()
    before, surroundings = zoo.state(model), around()
    with pytest.raises(expected) as caught:
        profile(model, [ROWS], runs=4, warmup=0, threads=2)
    if expected is MismatchError:
        assert "ValueError: too hot" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert around() == surroundings
    check_same(before, zoo.state(model))


def test_later_data_that_does_not_fit() -> None:
    with pytest.raises(MismatchError, match="6x31"):
        profile(zoo.made(zoo.Mlp), [ROWS, zoo.rows(width=31)], runs=2)


def test_a_profiler_of_the_user_is_left_alone() -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    model = zoo.made(zoo.Mlp)
    profile(model, [ROWS], runs=1)  # silences it
    with torch_profile(activities=[ProfilerActivity.CPU]) as own:
        with pytest.raises(UsageError, match="profiler of torch is running"):
            profile(model, [ROWS], runs=1)
        model(**zoo.given(ROWS))
    assert sum(event.name == "aten::linear" for event in own.events()) == 3


def test_values_are_not_held() -> None:
    """Otherwise each run needs as much new memory as all its values, which takes longer than many ops."""
    made_by: list[Any] = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.more = nn.Linear(32, 32), nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.fc(x)
            made_by.append(weakref.ref(x))
            x = self.more(x)
            alive.append(made_by[-1]() is not None)
            return x

    alive: list[bool] = []
    timer = TorchTimer(Watched().eval(), ROWS)
    alive.clear()
    prepared = timer.prepare(ROWS)
    timer.run(prepared)
    timer.run_profiled(prepared)
    timer.close()
    assert alive == [False] * 3  # a profiled run comes after another, which fills the caches


def test_compiled_models_are_timed_without_torch_compile() -> None:
    found = profile(torch.compile(zoo.made(zoo.Mlp)), [ROWS], runs=2)
    assert any("torch.compile" in note for note in found.notes)
    assert [row.op for row in found.rows if row.op] == ["fc1", "act1", "fc2", "act2", "fc3"]


def test_quiet() -> None:
    """torch's profiler writes to standard error by itself."""
    code = (
        "import torch, numpy as np\nfrom inc_tb import profile\n"
        "found = profile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()),"
        " [np.ones((2, 4), np.float32)], runs=2)\nassert len(found.rows) == 3, found.rows\n"
    )
    ignore = "ignore:torch.ao.quantization is deprecated:DeprecationWarning"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", ignore, "-c", code], capture_output=True, text=True, check=False,
        env={k: v for k, v in os.environ.items() if "KINETO" not in k}, cwd=Path(__file__).parents[2],
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
