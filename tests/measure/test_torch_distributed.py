"""A training in two processes: each diagnoses its shard, and all have the diagnosis of the whole."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from inc_tb.measure import shards as merge
from inc_tb.measure.stats import PairStats
from tests.waiting import PATIENCE_S

MODELS = textwrap.dedent(
    """
    import copy, sys, warnings
    warnings.simplefilter("ignore")
    import numpy as np, torch
    from torch import nn
    import inc_tb

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    quantized = torch.ao.quantization.quantize_dynamic(model)
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for layer in (rounded[0], rounded[4]):
            layer.weight.copy_((layer.weight * 8).round() / 8)
    batches = [torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(i)) * (1 + 10 * i) for i in range(4)]


    def save(diagnosis, path):
        arrays = {f"op:{name}": array for name, array in diagnosis.ops.items() if array.dtype != object}
        for row in diagnosis.histograms:
            arrays[f"histogram:{row.op}:{row.role}"] = np.array([row.top, *row.reference, *row.quantized, *row.error])
        np.savez(path, samples=diagnosis.samples, **arrays)
    """
)
WORKER = MODELS + textwrap.dedent(
    """
    from torch import distributed
    rank = int(sys.argv[1])
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    if sys.argv[3] == "shards":
        found = inc_tb.diagnose(model, quantized, batches[2 * rank : 2 * rank + 2], distributed=True)
        save(found, f"{sys.argv[2]}/rank{rank}.npz")
    elif sys.argv[3] == "parameters":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        def spread(model):
            for layer in (model[0], model[4], model):
                fully_shard(layer)
            return model

        found = inc_tb.diagnose(spread(model), spread(rounded), batches[2 * rank : 2 * rank + 2], distributed=True)
        save(found, f"{sys.argv[2]}/rank{rank}.npz")
        mesh = init_device_mesh("cpu", (2,))
        parts = parallelize_module(nn.Sequential(nn.Linear(8, 4)), mesh, {"0": ColwiseParallel()})
        try:
            inc_tb.diagnose(parts, nn.Sequential(nn.Linear(8, 4)), torch.randn(2, 8))
        except inc_tb.IncTbError as error:
            open(f"{sys.argv[2]}/error{rank}.txt", "w").write(str(error))
    else:
        shard = batches[:2] if rank else [torch.randn(3, 1, 8, 8, 1)]
        try:
            inc_tb.diagnose(model, quantized, shard, distributed=True)
        except inc_tb.IncTbError as error:
            open(f"{sys.argv[2]}/error{rank}.txt", "w").write(str(error))
    distributed.destroy_process_group()
    """
)


def run_ranks(folder: Path, what: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    there = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    there["GLOO_SOCKET_IFNAME"] = "lo"  # nothing listens beyond this machine
    commands = [[sys.executable, "-c", WORKER, str(rank), str(folder), what] for rank in range(2)]
    running = [subprocess.Popen(c, env=there, stderr=subprocess.PIPE, text=True) for c in commands]
    for process in running:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as stored:  # noqa: TID251
        return dict(stored)


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    run_ranks(tmp_path, "shards")
    same_as_alone(tmp_path, "quantized")


@pytest.mark.slow
def test_parameters_that_are_spread_are_gathered(tmp_path: Path) -> None:
    """By FSDP. Tensor parallelism has no whole results to be gathered."""
    run_ranks(tmp_path, "parameters")
    same_as_alone(tmp_path, "rounded")
    for rank in range(2):
        told = (tmp_path / f"error{rank}.txt").read_text()
        assert "is spread over several processes by tensor parallelism, in which no op has its whole result" in told


def same_as_alone(folder: Path, quantized: str) -> None:
    names: dict[str, object] = {}
    exec(MODELS + f"save(inc_tb.diagnose(model, {quantized}, batches), {str(folder / 'whole.npz')!r})", names)
    whole, first, second = (read(folder / f"{name}.npz") for name in ("whole", "rank0", "rank1"))
    assert set(whole) == set(first) == set(second)
    for name in whole:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        if name.startswith("histogram") or name.endswith(("_min", "_max", "max_abs", "clipped", "params")):
            np.testing.assert_array_equal(whole[name], first[name], err_msg=name)
        else:  # of sums of the same numbers in another order; differences of them lose some of the sixteen digits
            np.testing.assert_allclose(first[name], whole[name], rtol=1e-9, err_msg=name)
    assert whole["samples"] == 12


def test_packing_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of numbers whose sums are exact, every statistic of two shards is that of the whole, bit for bit."""
    x = np.random.default_rng(0).integers(-64, 64, (8, 3, 5)).astype(np.float32) / 4
    y = np.round(x)
    whole, shards = PairStats(1), [PairStats(1), PairStats(1)]
    whole.update(x, y)
    sent: list[bytes] = []
    monkeypatch.setattr(merge, "_gathered", lambda data: [*sent, data])
    for shard, part in zip(shards, (slice(0, 3), slice(3, 8)), strict=True):
        shard.update(x[part], y[part])
        own = merge.Shard({("op", "output"): shard, ("op", "weight"): whole}, 4)
        found = merge.merged_over_ranks(own)
        sent.append(merge.packed(own))
    assert found.samples == 8
    for role in ("output", "weight"):
        merged = found.stats["op", role]
        np.testing.assert_array_equal(merged.sums, whole.sums)
        np.testing.assert_array_equal(merged.extremes, whole.extremes)
        for mine, theirs in zip(merged._histograms(), whole._histograms(), strict=True):
            assert mine.top == theirs.top
            np.testing.assert_array_equal(mine.counts, theirs.counts)
