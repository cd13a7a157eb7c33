"""What a profile is worth: how much of a run its ops account for, whether equal models look different, what it costs.

    python -m benchmarks.times [--only NAME] [--runs 50] [--repeats 10] [--threads N]

Ops are to account for 85 to 115 % of whole runs without a profiler. The same model twice is to have an op that differs
in at most one of ten repetitions; a convolution that is four times as wide in one of two models, and the one behind it,
are to be found in all. "profiler" is by how much runs take longer with it; "against runs" is the time of the
whole call, which opens the models several times and runs each with and without the profiler, over the runs without it.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper
from onnxruntime.quantization import quantize_dynamic

import inc_tb
from benchmarks.models import images, make_cnn, quantize
from inc_tb.frameworks.models import read_inputs
from tests.frameworks import onnx_zoo as zoo

LEAST, MOST = 0.85, 1.15


class Case(NamedTuple):
    fp32: Any
    int8: Any
    batch: dict[str, Any]


def cnn(folder: Path) -> Case:
    fp32 = make_cnn(folder / "cnn.onnx", size=64, width=32, blocks=4)
    return Case(fp32, quantize(fp32, folder / "cnn-int8.onnx", images(8, 64)), {"image": images(1, 64)})


def mobile(folder: Path) -> Case:
    """Inverted residuals as in MobileNetV2: short ops, many of them."""
    net = zoo.Net(1)
    zero, six = net.constant("zero", 0, np.float32), net.constant("six", 6, np.float32)

    def relu6(name: str, x: str) -> str:
        return net.op("Clip", f"{name}/relu6", x, zero, six)

    x = relu6("stem", net.conv("stem", net.input("x", "n", 3, 96, 96), 3, 24, strides=[2, 2]))
    for i in range(8):
        y = relu6(f"{i}/expand", net.conv(f"{i}/expand", x, 24, 144, kernel=1))
        y = relu6(f"{i}/depthwise", net.conv(f"{i}/depthwise", y, 144, 144, group=144))
        x = net.op("Add", f"{i}/add", net.conv(f"{i}/project", y, 144, 24, kernel=1), x)
    net.output(net.gemm("fc", net.op("Flatten", "flat", net.op("GlobalAveragePool", "gap", x)), 24, 100))
    path, feeds = net.save(folder, "mobile.onnx"), zoo.data(net, 4)
    return Case(path, zoo.static(path, feeds, act="QUInt8", per_channel=True), zoo.data(net, 1))


def transformer(folder: Path, form: str) -> Case:
    net = zoo.Net(2, 20)
    x = net.input("x", "n", 128, 256)
    for i in range(4):
        q, k, v = (net.linear(f"{i}/{name}", x, 256, 256) for name in "qkv")
        scores = net.op("MatMul", f"{i}/scores", q, net.op("Transpose", f"{i}/kt", k, perm=[0, 2, 1]))
        mixed = net.op("MatMul", f"{i}/context", net.op("Softmax", f"{i}/softmax", scores, axis=-1), v)
        x = net.op("Add", f"{i}/skip1", x, net.linear(f"{i}/proj", mixed, 256, 256))
        x = net.op("LayerNormalization", f"{i}/norm", x, net.weight(f"{i}.s", 256), net.weight(f"{i}.b", 256), axis=-1)
        up = net.op("Gelu", f"{i}/gelu", net.linear(f"{i}/up", x, 256, 1024))
        x = net.op("Add", f"{i}/skip2", x, net.linear(f"{i}/down", up, 1024, 256))
    net.output(x)
    path, feeds = net.save(folder, "transformer.onnx"), zoo.data(net, 1)
    if form == "static":
        return Case(path, zoo.static(path, feeds, act="QUInt8"), feeds)
    quantize_dynamic(path, folder / "transformer-dynamic.onnx")
    return Case(path, folder / "transformer-dynamic.onnx", feeds)


def torch_cnn(folder: Path) -> Case:
    torch = importlib.import_module("torch")
    models = importlib.import_module("benchmarks.torch")
    tool = inc_tb.TorchQuantizer(approach="static", calibrator="minmax")
    reference, image = models.ResNet().eval(), torch.randn(1, 3, 128, 128)
    int8 = tool.quantize(reference, Path(), [{"image": image.numpy()}], tool.settings, [])
    return Case(reference, int8, {"image": image.numpy()})


def torch_transformer(folder: Path) -> Case:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    settings = transformers.BertConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4)
    reference = transformers.BertForSequenceClassification(settings).eval()
    int8 = torch.ao.quantization.quantize_dynamic(reference, {torch.nn.Linear})
    return Case(reference, int8, {"input_ids": np.random.default_rng(0).integers(0, 30000, (1, 128))})


def tensorflow_cnn(folder: Path) -> Case:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    keras, tf = importlib.import_module("keras"), importlib.import_module("tensorflow")
    layers = keras.layers
    x = given = layers.Input((96, 96, 3), batch_size=1, name="image")
    for i in range(4):
        x = layers.ReLU(name=f"relu{i}")(layers.Conv2D(32, 3, padding="same", name=f"conv{i}")(x))
    model = keras.Model(given, layers.Dense(10, name="fc")(layers.GlobalAveragePooling2D(name="gap")(x)))
    image = np.random.default_rng(0).normal(size=(1, 96, 96, 3)).astype(np.float32)
    files = []
    for name in ("float", "int8"):
        converter = tf.lite.TFLiteConverter.from_keras_model(model)
        if name == "int8":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: [[image]] * 4
        files.append(folder / f"{name}.tflite")
        files[-1].write_bytes(converter.convert())
    return Case(files[0], files[1], {read_inputs(files[0])[0].name: image})


CASES: dict[str, Callable[[Path], Case]] = {
    "CNN, static": cnn, "MobileNet-like, static": mobile,
    "transformer, static": lambda folder: transformer(folder, "static"),
    "transformer, dynamic": lambda folder: transformer(folder, "dynamic"),
    "PyTorch ResNet-18, FX": torch_cnn, "PyTorch BERT, dynamic": torch_transformer, "TFLite CNN": tensorflow_cnn,
}  # fmt: skip


def show_accounted(name: str, case: Case, runs: int, threads: int | None) -> None:
    start = time.perf_counter()
    found = inc_tb.profile(case.fp32, [case.batch], quantized=case.int8, runs=runs, threads=threads)
    took = time.perf_counter() - start
    plain = runs * sum(us or 0.0 for us in (found.total.fp32_mean_us, found.total.int8_mean_us)) / 1e6
    for side in ("fp32", "int8"):
        share, total = found.accounted[side], getattr(found.total, f"{side}_us")
        mark = "" if LEAST <= share <= MOST else "  missed"
        cost = f"{took / plain:>14.1f}" if side == "fp32" else f"{'':>14}"
        print(
            f"{name if side == 'fp32' else '':24}{side:>6}{total / 1000:>9.2f}{share:>9.3f}"
            f"{found.overhead[side]:>10.1%}{cost}{mark}",
            flush=True,
        )


def show_equal(name: str, model: Path, batch: dict[str, Any], runs: int, threads: int | None, repeats: int) -> None:
    copy = model.with_name(f"copy-{model.name}")
    shutil.copyfile(model, copy)
    found = [inc_tb.profile(model, [batch], quantized=copy, runs=runs, threads=threads) for _ in range(repeats)]
    wrong = [sum(bool(row.differs) for row in profile.rows) for profile in found]
    whole = sum(bool(profile.total.differs) for profile in found)
    ops = len(found[0].rows) - 1
    print(f"{name:24}{ops:>6}{sum(map(bool, wrong)):>12} of {repeats}{sum(wrong):>10}{whole:>16}", flush=True)


def planted(folder: Path) -> Case:
    """conv2 writes every channel four times, of which conv3 takes a quarter each: the same function."""
    net = zoo.Net(1)
    x = net.input("x", "n", 3, 64, 64)
    for i, channels in enumerate((3, 32, 32, 32), start=1):
        x = net.op("Relu", f"relu{i}", net.conv(f"conv{i}", x, channels, 32))
    net.output(net.gemm("fc", net.op("Flatten", "flat", net.op("GlobalAveragePool", "gap", x)), 32, 10))
    path, model = net.save(folder, "narrow.onnx"), net.model()
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name in ("conv2.w", "conv2.b"):
            values = np.concatenate([values] * 4)
        if tensor.name == "conv3.w":
            values = np.concatenate([values / 4] * 4, axis=1)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))
    onnx.save(model, folder / "wide.onnx")
    return Case(path, folder / "wide.onnx", zoo.data(net, 2))


def show_planted(case: Case, runs: int, threads: int | None, repeats: int) -> None:
    found = [inc_tb.profile(case.fp32, [case.batch], quantized=case.int8, runs=runs, threads=threads)
             for _ in range(repeats)]  # fmt: skip
    print(f"\n{'planted at conv2, conv3':24}{'found in':>18}{'times as long':>16}")
    for op in ("conv1", "conv2", "conv3", "conv4"):
        rows = [next(row for row in profile.rows if row.op == op) for profile in found]
        told = sum(bool(row.differs and (row.difference_us or 0) > 0) for row in rows)
        ratio = np.median([(row.int8_us or 0) / (row.fp32_us or 1) for row in rows])
        print(f"{op:24}{told:>12} of {repeats}{ratio:>16.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, help="1 where other programs run beside it")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    chosen = {name: make for name, make in CASES.items() if arguments.only in name}
    print(f"{'':24}{'':>6}{'ms':>9}{'ops/run':>9}{'profiler':>10}{'against runs':>14}")
    with tempfile.TemporaryDirectory() as folder:
        for name, make in chosen.items():
            try:
                with redirect_stdout(io.StringIO()):  # converters talk
                    case = make(Path(folder))
            except (AttributeError, ImportError) as error:
                print(f"{name:24}left out: {error}", flush=True)
                continue
            show_accounted(name, case, arguments.runs, arguments.threads)
        print(f"\n{'the same model twice':24}{'ops':>6}{'told apart in':>18}{'ops':>10}{'whole models':>16}")
        for name in ("CNN, static", "MobileNet-like, static", "transformer, dynamic"):
            if name in chosen:
                case = CASES[name](Path(folder))
                for side, model in (("fp32", case.fp32), ("int8", case.int8)):
                    shown = f"{name.partition(',')[0]}, {side}"
                    show_equal(shown, model, case.batch, arguments.runs, arguments.threads, arguments.repeats)
        show_planted(planted(Path(folder)), arguments.runs, arguments.threads, arguments.repeats)


if __name__ == "__main__":
    main()
