"""Everything that inc-tb reads which somebody else may have written: seeds, and what people do with it.

Frameworks are imported where they are used: a child has one of them.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.engine import MARKER, Reader
from tests.fuzz.mutations import in_bytes, in_json, in_message, json_bytes
from tests.hostile import sealed

GOLDEN = Path(__file__).parents[1] / "golden"


def _made_of(seeds: Callable[[], Sequence[tuple[str, bytes]]]) -> Callable[[Path, random.Random], Path]:
    """One of the files, changed in its bytes."""

    def make(folder: Path, rng: random.Random) -> Path:
        name, data = rng.choice(seeds())
        path = folder / name
        path.write_bytes(in_bytes(data, rng))
        return path

    return make


# ONNX


@cache
def _onnx_models() -> list[Any]:
    import onnx
    from onnxruntime.quantization import QuantFormat, quantize_dynamic

    from tests.example_run import make_models

    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for settings in ({}, {"per_channel": True}):
            fp32, int8 = make_models(folder, **settings)
            found.append(onnx.load(int8))
        quantize_dynamic(fp32, folder / "dynamic.onnx")
        found += [onnx.load(folder / "dynamic.onnx"), onnx.load(fp32)]
        found.append(_qoperator(folder, fp32, QuantFormat.QOperator))
    return found


def _qoperator(folder: Path, fp32: Path, kind: Any) -> Any:
    import onnx
    from onnxruntime.quantization import quantize_static

    from tests.example_run import _Batches

    quantize_static(fp32, folder / "qop.onnx", _Batches(), quant_format=kind)
    return onnx.load(folder / "qop.onnx")


def _make_onnx(folder: Path, rng: random.Random) -> Path:
    model = rng.choice(_onnx_models())
    path = folder / "model.onnx"
    if rng.random() < 0.75:
        model = in_message(model, rng)
    data = model.SerializeToString()
    path.write_bytes(in_bytes(data, rng) if rng.random() < 0.35 else data)
    return path


def _read_onnx(path: Path) -> None:
    import onnx

    import inc_tb
    from inc_tb.frameworks.models import read_graph, read_inputs

    onnx.save(_onnx_models()[3], path.with_name("fp32.onnx"))
    read_graph(path)
    read_inputs(path)
    data = {"input": np.ones((2, 2, 6, 6), np.float32)}
    inc_tb.diagnose(path.with_name("fp32.onnx"), path, [data])
    inc_tb.diagnose(path, path.with_name("fp32.onnx"), [data])


def _probe_onnx(path: Path) -> None:
    import onnx

    import inc_tb

    onnx.save(_onnx_models()[3], path.with_name("fp32.onnx"))
    data = {"input": np.ones((2, 2, 6, 6), np.float32)}
    inc_tb.probe(path.with_name("fp32.onnx"), path, data, budget_s=0.05)
    inc_tb.profile(path.with_name("fp32.onnx"), data, quantized=path, runs=2, warmup=0)


# Data


@cache
def _data_files() -> list[tuple[str, bytes]]:
    array = np.arange(48, dtype=np.float32).reshape(6, 8)
    found = []
    for save, name in ((np.savez, "d.npz"), (np.savez_compressed, "d.npz")):
        stream = io.BytesIO()
        save(stream, x=array)
        found.append((name, stream.getvalue()))
    stream = io.BytesIO()
    np.save(stream, array)
    return [*found, *[("d.npy", stream.getvalue())] * 3]


def _read_data(path: Path) -> None:
    from inc_tb.data import open_data
    from inc_tb.frameworks.ops import Input

    for _ in open_data(path, [Input("x", np.dtype(np.float32), (None, 8))], 4).first(64):
        pass


def _make_test_data(folder: Path, rng: random.Random) -> Path:
    from onnx import numpy_helper

    tensor = numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(2, 8), "x")
    data = (in_message(tensor, rng) if rng.random() < 0.7 else tensor).SerializeToString()
    (folder / "test_data_set_0").mkdir()
    (folder / "test_data_set_0" / "input_0.pb").write_bytes(in_bytes(data, rng) if rng.random() < 0.5 else data)
    return folder


# Logs


@cache
def _event_files() -> list[tuple[str, bytes]]:
    return [("events.out.tfevents.1.golden", next(p.glob("events*")).read_bytes()) for p in sorted(GOLDEN.glob("v*"))]


def _read_run(path: Path) -> None:
    import inc_tb
    from inc_tb.show.cards.runs import run_card

    with inc_tb.SummaryWriter(path.parent):
        pass
    run = inc_tb.load(path.parent)
    repr(run)
    run_card(run)


@cache
def _records() -> list[tuple[str, list[bytes]]]:
    from inc_tb import records
    from inc_tb.store.eventfile import read_events

    found = []
    for folder in sorted(GOLDEN.glob("v*")):
        for event in read_events(next(folder.glob("events*"))):
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == records.PLUGIN:
                    found += [(value.tag.partition("/")[2], list(value.tensor.string_val))]
    return found


def _make_record(folder: Path, rng: random.Random) -> Path:
    """One whose checksums hold, whatever is in it; beside those that a diagnosis wants."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    from inc_tb.records import checksum
    from inc_tb.store import summaries
    from inc_tb.store.eventfile import EventFile

    stored = dict(_records())
    kind, (head, *elements) = rng.choice(_records())
    if elements and rng.random() < 0.6:
        at = rng.randrange(len(elements))
        data = gzip.decompress(elements[at])
        is_json = kind != "ops" and rng.random() < 0.8
        changed = json_bytes(in_json(json.loads(data), rng)) if is_json else in_bytes(data, rng)
        elements[at] = gzip.compress(changed, 1) if rng.random() < 0.95 else changed
    header = json.loads(head)
    header["checksums"] = [checksum(e) for e in elements]
    if rng.random() < 0.6:
        changed = in_json(header, rng)
        header = changed if isinstance(changed, dict) else header
    stored[kind] = [sealed(header), *elements]
    file = EventFile(folder)
    values = [summaries.blobs(f"quantization/{name}", blobs) for name, blobs in stored.items()]
    file.write(Event(step=0, summary=Summary(value=values)))
    file.close()
    return file.path


# Journals and what is carried


_JOURNAL = [
    {"about": {"version": 1, "strategy": "probe", "model": "x"}, "given": {"model": "a.onnx", "samples": 3}},
    {"baseline": 0.9, "objectives": {"latency_ms": 1.0}},
    {"key": "k1", "trial": {"name": "trial-001", "accuracy": 0.8, "fallback": ["a"], "config": {"b": [1, 2]}}},
    {"saved": "trial-001"},
]
_SIMULATED = [{"version": 1, "about": "m", "data": "d", "sites": ["a"]}, {"on": [0], "errors": [0.5]}, {"reached": 3}]


def _make_journal(folder: Path, rng: random.Random) -> Path:
    lines = list(rng.choice((_JOURNAL, _SIMULATED)))
    if rng.random() < 0.8:
        lines = [in_json(line, rng) if rng.random() < 0.5 else line for line in lines]
    data = b"".join(json_bytes(line) + b"\n" for line in lines)
    path = folder / "tuning.jsonl"
    path.write_bytes(in_bytes(data, rng) if rng.random() < 0.5 else data)
    return path


def _read_journal(path: Path) -> None:
    from inc_tb.errors import UsageError
    from inc_tb.search.journal import Journal
    from inc_tb.tuning.history import History, find_trial

    list(Journal(path))
    for read in (
        lambda: find_trial(path.parent, "trial-001"),
        lambda: History(path.parent, {"strategy": "probe", "model": "x"}, {}, resume=True),
    ):
        try:
            read()
        except UsageError:
            continue


def _make_carried(folder: Path, rng: random.Random) -> Path:
    recipe = {
        "version": 1, "framework": "onnx", "tool": "OnnxRuntimeQuantizer", "settings": {"per_channel": True},
        "keep": ["a"], "examples": [{"name": "x", "dtype": "float32", "shape": [1, 8]}], "trial": "trial-001",
        "accuracy": 0.5, "baseline": 0.6, "target": 0.55, "packages": {"onnx": "1"}, "own": {"file": "model.onnx"},
        "files": {"model.onnx": "00"},
    }  # fmt: skip
    (folder / "model.onnx").write_bytes(b"")
    data = json_bytes(in_json(recipe, rng))
    (folder / "recipe.json").write_bytes(in_bytes(data, rng) if rng.random() < 0.3 else data)
    return folder


def _read_carried(path: Path) -> None:
    import warnings

    import inc_tb

    with warnings.catch_warnings(action="ignore"):
        inc_tb.load_model(path)


# What other tools leave


@cache
def _traces() -> list[tuple[str, Any]]:
    log = [
        {"cat": "Node", "ph": "X", "name": f"{name}_kernel_time", "ts": at, "dur": 5, "pid": 1, "tid": 2,
         "args": {"op_name": "Conv", "node_index": str(at)}}
        for at, name in enumerate(("conv1", "relu", "QLinearConv"))
    ]  # fmt: skip
    mark = {"cat": "Session", "ph": "X", "name": "model_run", "ts": 0, "dur": 20, "pid": 1, "tid": 2, "args": {}}
    of_torch = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "pid": 1, "tid": 1, "ts": 1.5, "dur": 9, "args": {}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 1, "dur": 20},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    ]
    return [("t.json", [*log, mark]), ("t.json", {"traceEvents": of_torch}), ("t.json.gz", {"traceEvents": of_torch})]


def _make_trace(folder: Path, rng: random.Random) -> Path:
    name, content = rng.choice(_traces())
    data = json_bytes(in_json(content, rng) if rng.random() < 0.8 else content)
    data = in_bytes(data, rng) if rng.random() < 0.4 else data
    packed = gzip.compress(data, 1) if name.endswith("gz") else data
    path = folder / name
    path.write_bytes(in_bytes(packed, rng) if rng.random() < 0.1 else packed)
    return path


def _import(path: Path) -> None:
    import inc_tb

    inc_tb.import_workspace(path)


@cache
def _workspaces() -> dict[str, dict[str, bytes]]:
    from tests.sources.workspaces import NAMES, unpack

    found: dict[str, dict[str, bytes]] = {}
    with tempfile.TemporaryDirectory() as place:
        unpack(Path(place))
        for name in NAMES:
            inside = Path(place, name)
            files = {str(p.relative_to(inside)): p.read_bytes() for p in inside.rglob("*") if p.is_file()}
            found[name] = {name: data for name, data in files.items() if len(data) < 300_000}
    return {name: files for name, files in found.items() if files}


def _make_workspace(folder: Path, rng: random.Random) -> Path:
    """A real one of Neural Compressor in which one file is damaged."""
    files = dict(_workspaces()[rng.choice(sorted(_workspaces()))])
    damaged = rng.choice(sorted(files))
    files[damaged] = in_bytes(files[damaged], rng)
    for name, data in files.items():
        path = folder / "w" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "w"


_CONFIG = b"""\
model: {name: cnn, framework: onnxrt_qlinearops}
quantization:
  calibration: {sampling_size: 50}
  op_wise: {'Conv_1': {activation: {dtype: ['fp32']}, weight: {dtype: ['fp32']}}}
  model_wise: {activation: {algo: minmax, scheme: asym}, weight: {granularity: per_channel}}
tuning:
  accuracy_criterion: {relative: 0.01}
  exit_policy: {timeout: 0, max_trials: 100}
  strategy: {name: basic}
  random_seed: 9527
  workspace: {path: ./nc_workspace}
"""


def _read_config(path: Path) -> None:
    import inc_tb

    inc_tb.read_config(path)


_CODE = b'"""A model."""\nimport math\n\n\ndef make(size=3):\n    return {"a": [math.pi] * size}\n'


def _read_code(path: Path) -> None:
    from inc_tb.engines.models import open_model

    open_model(f"{path}:make")


# PyTorch


@cache
def _torch_weights() -> list[tuple[str, bytes]]:
    import torch

    weights = {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(3), "q": torch.ones(2, dtype=torch.int8)}
    stream = io.BytesIO()
    torch.save(weights, stream)
    hostile = io.BytesIO()
    torch.save({"a": _Hostile()}, hostile)
    return [("weights.pt", stream.getvalue()), ("weights.pt", stream.getvalue()), ("weights.pt", hostile.getvalue())]


class _Hostile:
    def __reduce__(self) -> Any:
        return open, (MARKER, "w")


def _read_torch_weights(path: Path) -> None:
    import os

    from inc_tb.frameworks.torch.carried import _weights

    os.chdir(path.parent)
    _weights(path, has_torchao=False)


# TensorFlow


@cache
def _tensorflow_graphs() -> list[Any]:
    from inc_tb.frameworks.tensorflow.library import tf

    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None, 8), "x")
        weights = tf.constant(np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4), name="w")
        y = tf.nn.relu(tf.linalg.matmul(x, weights, name="product"), name="relu")
        tf.quantization.fake_quant_with_min_max_args(y, 0.0, 3.0, name="rounded")
    return [graph.as_graph_def()]


def _make_pb(folder: Path, rng: random.Random) -> Path:
    data = in_message(rng.choice(_tensorflow_graphs()), rng).SerializeToString()
    (folder / "m.pb").write_bytes(in_bytes(data, rng) if rng.random() < 0.3 else data)
    return folder / "m.pb"


def _read_tensorflow(path: Path) -> None:
    import inc_tb
    from inc_tb.frameworks.models import read_graph

    fp32 = path.with_name("fp32.pb")
    fp32.write_bytes(_tensorflow_graphs()[0].SerializeToString())
    read_graph(path)
    inc_tb.diagnose(fp32, path, [np.ones((2, 8), np.float32)])


@cache
def _keras_model() -> Any:
    import keras

    layers = [keras.Input((8,), name="x"), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)]
    return keras.Sequential(layers)


@cache
def _tflite_files() -> list[tuple[str, bytes]]:
    from inc_tb.frameworks.tensorflow.library import tf

    found = []
    for optimized in (False, True):
        converter = tf.lite.TFLiteConverter.from_keras_model(_keras_model())
        if optimized:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: ([np.ones((1, 8), np.float32) * i] for i in range(4))
        found.append(("m.tflite", converter.convert()))
    return found


def _read_tflite(path: Path) -> None:
    """TFLite's interpreter trusts its files; here it is ours that reads them."""
    from inc_tb.frameworks.models import read_graph, read_inputs

    read_graph(path)
    read_inputs(path)


@cache
def _saved_models() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        _keras_model().export(Path(place, "s"), verbose=False)
        files = [p for p in Path(place, "s").rglob("*") if p.is_file()]
        return {str(p.relative_to(Path(place, "s"))): p.read_bytes() for p in files}


def _make_saved_model(folder: Path, rng: random.Random) -> Path:
    files = dict(_saved_models())
    damaged = rng.choice(sorted(files))
    files[damaged] = in_bytes(files[damaged], rng)
    for name, data in files.items():
        (folder / "s" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "s" / name).write_bytes(data)
    return folder / "s"


@cache
def _keras_file() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        _keras_model().save(Path(place, "m.keras"))
        with zipfile.ZipFile(Path(place, "m.keras")) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


def _make_keras(folder: Path, rng: random.Random) -> Path:
    files = dict(_keras_file())
    damaged = rng.choice(sorted(files))
    is_json = damaged.endswith("config.json") and rng.random() < 0.8
    old = files[damaged]
    files[damaged] = json_bytes(in_json(json.loads(old), rng)) if is_json else in_bytes(old, rng)
    with zipfile.ZipFile(folder / "m.keras", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return folder / "m.keras"


def _read_model(path: Path) -> None:
    from inc_tb.frameworks.models import read_graph, read_inputs

    read_graph(path)
    read_inputs(path)


READERS = (
    Reader("onnx", _make_onnx, _read_onnx),
    Reader("onnx-probe", _make_onnx, _probe_onnx),
    Reader("arrays", _made_of(_data_files), _read_data),
    Reader("test-data", _make_test_data, _read_data),
    Reader("events", _made_of(_event_files), _read_run),
    Reader("records", _make_record, _read_run),
    Reader("journals", _make_journal, _read_journal),
    Reader("carried", _make_carried, _read_carried),
    Reader("traces", _make_trace, _import),
    Reader("workspaces", _make_workspace, _import),
    Reader("configs", _made_of(lambda: [("c.yaml", _CONFIG)]), _read_config),
    Reader("code", _made_of(lambda: [("code.py", _CODE)]), _read_code),
    Reader("torch-weights", _made_of(_torch_weights), _read_torch_weights),
    Reader("tensorflow-graph", _make_pb, _read_tensorflow),
    Reader("tflite", _made_of(_tflite_files), _read_tflite),
    Reader("saved-model", _make_saved_model, _read_model),
    Reader("keras", _make_keras, _read_model),
)
