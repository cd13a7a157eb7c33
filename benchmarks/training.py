"""What the callbacks cost a training: a step that logs against forward passes of its batch, and one that does not.

    python -m benchmarks.training

The callback of transformers' Trainer is called as the Trainer calls it, in turns with the model on a training batch; it
takes its own choice of samples, an eighth of the batch. The last column is what a step that does not log costs, as a
share of a forward pass. Seconds are those of the processor, with one thread of torch, so that neighbors do not count.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.utils.data import DataLoader

from inc_tb.integrations.training import default_samples
from inc_tb.integrations.transformers import DiagnosisCallback

ROUNDS = 5
WORDS = 1000


class Case(NamedTuple):
    name: str
    model: nn.Module
    batch: dict[str, Tensor]
    options: dict[str, Any]


class Cnn(nn.Module):
    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(depth))
        self.relus = nn.ModuleList(nn.ReLU() for _ in range(depth))
        self.scores = nn.Linear(channels, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.first(self.quant(image))
        for conv, relu in zip(self.blocks, self.relus, strict=True):
            x = relu(conv(x))
        return self.dequant(self.scores(x.mean((2, 3))))


def cnn(channels: int, depth: int, samples: int, size: int) -> Case:
    model = Cnn(channels, depth).train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    pairs = [[f"blocks.{i}", f"relus.{i}"] for i in range(depth)]
    prepared = quantization.prepare_qat(quantization.fuse_modules_qat(model, pairs))
    batch = {"image": torch.randn(samples, 3, size, size)}
    prepared(**batch)
    name = f"CNN, {depth} convolutions of {channels}, {samples} x {size} x {size}, QAT"
    return Case(name, prepared, batch, {})


def bert(hidden: int, layers: int, samples: int, words: int, *, qat: bool) -> Case:
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=WORDS, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
    )  # fmt: skip
    model = BertModel(config).train()
    options = {}
    if qat:
        activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
        weights = IntxFakeQuantizeConfig(torch.int8, "per_channel")
        quantize_(model, QATConfig(activation_config=activations, weight_config=weights, step="prepare"))
    else:
        options = {"quantize": lambda given: quantization.quantize_dynamic(given, {nn.Linear})}
    batch = {"input_ids": torch.randint(0, WORDS, (samples, words))}
    name = f"BERT, {layers} layers of {hidden}, {samples} x {words}, {'QAT' if qat else 'int8 tried out'}"
    return Case(name, model, batch, options)


def in_turns(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each, one after the other in every round, so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: float(np.median(some)) for name, some in times.items()}


def measure(case: Case, folder: Path) -> str:
    rows = [dict(zip(case.batch, row, strict=True)) for row in zip(*case.batch.values(), strict=True)]
    given = {"model": case.model, "train_dataloader": DataLoader(rows, batch_size=len(rows)), "eval_dataloader": None}
    args = SimpleNamespace(per_device_train_batch_size=len(rows), label_names=None, output_dir=str(folder))
    state = SimpleNamespace(global_step=0, is_world_process_zero=True, is_hyper_param_search=False)
    often, never = DiagnosisCallback(every=1, **case.options), DiagnosisCallback(every=10**9, **case.options)
    for callback in (often, never):
        callback.on_train_begin(args, state, None, **given)

    def step(callback: DiagnosisCallback, times: int = 1) -> None:
        for _ in range(times):
            state.global_step += 1
            callback.on_step_end(args, state, None, **given)

    found = in_turns(
        {"forward": lambda: case.model(**case.batch), "logs": lambda: step(often), "rests": lambda: step(never, 1000)}
    )
    often.on_train_end(args, state, None)
    forward, logs, rests = found["forward"], found["logs"], found["rests"] / 1000
    times = f"{1000 * forward:>10.0f}{1000 * logs:>10.0f}{logs / forward:>8.2f}{rests / forward:>12.6f}"
    return f"{case.name:52}{default_samples(len(rows)):>8}{times}"


def main() -> None:
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", "no quantization diagnosis")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"{'':52}{'samples':>8}{'forward':>10}{'logging':>10}{'times':>8}{'not logging':>12}")
    print(f"{'':52}{'':8}{'ms':>10}{'ms':>10}{'forward':>8}{'/ forward':>12}")
    cases: list[Callable[[], Case]] = [
        lambda: cnn(8, 2, 32, 8),
        lambda: cnn(32, 8, 64, 32),
        lambda: cnn(64, 12, 64, 32),
        lambda: bert(128, 2, 16, 32, qat=True),
        lambda: bert(256, 4, 32, 64, qat=True),
        lambda: bert(256, 4, 32, 64, qat=False),
        lambda: bert(512, 4, 32, 128, qat=False),
    ]
    for make in cases:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(make(), Path(folder)), flush=True)


if __name__ == "__main__":
    main()
