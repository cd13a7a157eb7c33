"""What workers are worth on two cores, one thread each, and the constants that limit a thousand of them.

    python -m benchmarks.scale [--blocks 12] [--size 48] [--only probing,trials,shards,engines]

Every process is held to one core. "wall" is what a clock says, which on a machine that does other things, too, says
more about them. "CPU" is the time that processors have worked: of one process, against that of the caller and of the
busier one of the two workers, everything counted that they do, also that they are opened; it is what the wall would be
if nobody else worked. The goal is 1.7 times.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime

import inc_tb
from benchmarks.models import images, make_cnn, quantize
from inc_tb.advise.diagnose import diagnosed
from inc_tb.advise.given import Given
from inc_tb.advise.shares import Share, batches_of, measured_share
from inc_tb.data import open_data, open_for, take
from inc_tb.engines.engine import Engine, Sent
from inc_tb.engines.named import opened
from inc_tb.errors import UsageError
from inc_tb.frameworks.models import open_pair, read_inputs
from inc_tb.measure.shardfiles import files_of, merge, store

WORKERS, SAMPLES, TRIALS, SHARDS = 2, 32, 12, 4
EVALUATED = 2  # times the samples
ENGINES = ("processes:1", "dask://local", "ray://local")
PLENTY_S = 36_000
LARGE = 100_000  # ops


class Took(NamedTuple):
    wall_s: float
    cpu_s: float
    result: Any


class Inputs(NamedTuple):
    fp32: Path
    int8: Path
    data: Path


def made(folder: Path, blocks: int, size: int) -> Inputs:
    fp32 = make_cnn(folder / "cnn.onnx", size=size, width=32, blocks=blocks)
    samples = images(SAMPLES, size)
    np.savez(folder / "samples.npz", image=samples)
    return Inputs(fp32, quantize(fp32, folder / "int8.onnx", samples), folder / "samples.npz")


def likeness(fp32: Path, data: Path, candidate: Any) -> float:
    """Of all results to fp32's, in one thread; again and again, as if there were more samples."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    feed = take(open_data(data, read_inputs(fp32)), SAMPLES, read_inputs(fp32))[0]
    sessions = [
        onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        for model in (fp32, candidate)
    ]
    for _ in range(EVALUATED):
        wanted, found = (session.run(None, feed)[0] for session in sessions)
    return 1 - float(np.square(found - wanted).sum() / np.square(wanted).sum())


def probed(given: Inputs, diagnosis: inc_tb.Diagnosis, on: Any) -> Any:
    found = inc_tb.probe(given.fp32, given.int8, given.data, budget_s=PLENTY_S, diagnosis=diagnosis, on=on)
    return [(unit.name, unit.sensitivity, unit.recovery) for unit in found.units], found.explaining


def tuned(given: Inputs, logdir: str, on: Any) -> Any:
    found = inc_tb.tune(
        given.fp32, given.data, functools.partial(likeness, given.fp32, given.data), strategy="random", logdir=logdir,
        max_trials=TRIALS, timeout=PLENTY_S, objectives=("size",), minimize="ops", on=on,
        quantizer=inc_tb.OnnxRuntimeQuantizer(preprocess=False),  # PyTorch is not loaded
    )  # fmt: skip
    return [(trial.name, trial.fallback, trial.accuracy) for trial in found.trials], found.best.name


def hold(cores: Any) -> None:
    with cores.get_lock():
        core, cores.value = cores.value, cores.value + 1
    os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})


def cpu_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alone(work: Callable[[Any], Any]) -> Took:
    """In this process, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {(os.cpu_count() or 1) - 1})
    began, cpu = time.perf_counter(), time.process_time()
    try:
        result = work(None)
    finally:
        os.sched_setaffinity(0, before)
    return Took(time.perf_counter() - began, time.process_time() - cpu, result)


def side_by_side(work: Callable[[Any], Any]) -> Took:
    """With two workers, of which each has a core; this process mostly waits for them."""
    context = multiprocessing.get_context("spawn")
    began, cpu = time.perf_counter(), time.process_time()
    with ProcessPoolExecutor(WORKERS, context, hold, (context.Value("i", 0),)) as executor:
        result = work(executor)
        wall, own = time.perf_counter() - began, time.process_time() - cpu
        busiest = max(cpu_of(process) for process in executor._processes)
    return Took(wall, own + busiest, result)


def compare(name: str, work: Callable[[Any], Any]) -> None:
    one, two = alone(work), side_by_side(work)
    same = "the same result" if one.result == two.result else "ANOTHER RESULT"
    print(
        f"{name:<10}{one.wall_s:>8.1f}{two.wall_s:>8.1f}{one.wall_s / two.wall_s:>7.2f}x"
        f"{one.cpu_s:>10.1f}{two.cpu_s:>8.1f}{one.cpu_s / two.cpu_s:>7.2f}x   {same}"
    )


def shard(given: Inputs, share: Share) -> Any:
    adapter = open_pair(given.fp32, given.int8, batch_size=4)
    models, names = (given.fp32, given.int8), (str(given.fp32), str(given.int8))
    own = batches_of(share, open_for(adapter, given.data))
    assert own is not None
    return measured_share(share, adapter, own, models, names, Given(*models, names), {})[0]


def statistics(given: Inputs, folder: Path) -> None:
    """Shards against one process: what differs, and what one costs."""
    times, sizes = [], []
    for place in range(1, SHARDS + 1):
        began = time.process_time()
        found = shard(given, Share(place, SHARDS))
        times.append(time.process_time() - began)
        path = folder / "shards" / f"{place}.shard"
        store(path, found)
        sizes.append(path.stat().st_size)
    began = time.process_time()
    whole = merge(files_of([folder / "shards"]))
    merging = time.process_time() - began
    parts = diagnosed(whole.measured, whole.ops, whole.framework, whole.names, whole.notes, whole.origin)
    one = inc_tb.diagnose(given.fp32, given.int8, given.data, batch_size=4, previews=False)
    ops = one.ops.count
    columns = [c for c in one.ops if one.ops[c].dtype.kind == "f"]
    pairs = [(parts.ops[c].astype(float), one.ops[c].astype(float)) for c in columns]
    worst = max(float(np.nanmax(np.abs(a - b) / np.maximum(np.abs(b), 1e-30), initial=0)) for a, b in pairs)
    equal = parts.histograms == one.histograms and parts.by_sample == one.by_sample
    same = "equal to the bit" if equal else "DIFFERENT"
    print(f"{SHARDS} shards against one process: histograms, extremes and errors of samples {same};")
    print(f"columns of the op table differ by {worst:.0e} of their values at most")
    each = 1000 * np.mean(times) / ops
    print(
        f"a shard of {ops} ops: {np.mean(sizes) / ops:,.0f} bytes an op, {each:.1f} ms CPU an op to open and measure it"
    )
    print(f"merging: {1e6 * merging / SHARDS / ops:,.0f} us CPU for each op of a shard")


def nothing(sent: Sent, bits: bytes) -> None:
    return None


def round_trips(engine: Engine, count: int = 200) -> tuple[float, float]:
    """Seconds to the first answer, and milliseconds a task with many on their way, each with a subset of many ops."""
    shared, bits = engine.share(None, "nothing"), bytes(LARGE // 8)
    began = time.perf_counter()
    engine.result(engine.submit(nothing, shared, bits))
    first, began = time.perf_counter() - began, time.perf_counter()
    for future in [engine.submit(nothing, shared, bits) for _ in range(count)]:
        engine.result(future)
    return first, 1000 * (time.perf_counter() - began) / count


def constants() -> None:
    print(f"{'engine':<16}{'opened':>10}{'first task':>12}{'each task':>12}   with a subset of {LARGE:,} ops each")
    for name in ENGINES:
        with contextlib.ExitStack() as stack:
            began = time.perf_counter()
            try:
                engine = stack.enter_context(opened(name))
            except UsageError as error:
                print(f"{name:<16}{error}")
                continue
            ready = time.perf_counter() - began
            first, each = round_trips(engine)
            print(f"{name:<16}{ready:>8.1f} s{first:>10.1f} s{each:>9.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--only", default="probing,trials,shards,engines")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        given = made(folder, asked.blocks, asked.size)
        diagnosis = inc_tb.diagnose(given.fp32, given.int8, given.data)
        print(f"A network of {diagnosis.ops.count} ops, {SAMPLES} samples of {asked.size} x {asked.size}; load of the "
              f"machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip
        only = asked.only.split(",")
        if {"probing", "trials"} & {*only}:
            print(f"{'':<10}{'wall: 1':>8}{'2':>8}{'':>8}{'CPU: 1':>10}{'2':>8}")
        if "probing" in only:
            compare("probing", lambda on: probed(given, diagnosis, on))
        if "trials" in only:
            compare("trials", lambda on: tuned(given, str(folder / f"logs {on is None}"), on))
        if "shards" in only:
            statistics(given, folder)
        if "engines" in only:
            constants()


if __name__ == "__main__":
    main()
