"""Networks that the benchmarks make: trained weights are not needed to measure time and memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static


def make_cnn(path: Path, *, size: int, width: int, blocks: int) -> Path:
    """Residual blocks of two 3 x 3 convolutions, as in ResNet."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def conv(name: str, source: str, channels: int, target: str) -> None:
        values = rng.standard_normal((width, channels, 3, 3)).astype(np.float32) * np.sqrt(2 / (9 * channels))
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"{name}.weight"))
        weights.append(numpy_helper.from_array(np.zeros(width, np.float32), f"{name}.bias"))
        inputs = [source, f"{name}.weight", f"{name}.bias"]
        nodes.append(helper.make_node("Conv", inputs, [target], f"/{name}/Conv", kernel_shape=[3, 3], pads=[1] * 4))

    conv("stem", "image", 3, "x0")
    for i in range(blocks):
        conv(f"block.{i}.a", f"x{i}", width, f"a{i}")
        nodes.append(helper.make_node("Relu", [f"a{i}"], [f"r{i}"], f"/block.{i}/Relu"))
        conv(f"block.{i}.b", f"r{i}", width, f"b{i}")
        nodes.append(helper.make_node("Add", [f"b{i}", f"x{i}"], [f"s{i}"], f"/block.{i}/Add"))
        nodes.append(helper.make_node("Relu", [f"s{i}"], [f"x{i + 1}"], f"/block.{i}/Relu_1"))
    nodes.append(helper.make_node("GlobalAveragePool", [f"x{blocks}"], ["pooled"], "/pool"))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["logits"], "/flatten"))
    graph = helper.make_graph(
        nodes, "cnn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", width])],
        weights,
    )  # fmt: skip
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def quantize(source: Path, target: Path, images: np.ndarray, name: str = "image") -> Path:
    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches: Iterator[Any] = iter({name: rows} for rows in np.array_split(images, 4))

        def get_next(self) -> Any:
            return next(self.batches, None)

    quantize_static(source, target, Reader(), quant_format=QuantFormat.QDQ, extra_options={"DebugModelOnly": False})
    return target


def images(count: int, size: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 3, size, size)).astype(np.float32)
