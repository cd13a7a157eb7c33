"""Networks whose shapes only data tells: a recognizer of lines of any width, a transformer for any length of text."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save


class _Net:
    def __init__(self) -> None:
        self.nodes, self.weights = [], []
        self._random = np.random.default_rng(0)

    def op(self, kind: str, name: str, inputs: list[str], **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}_out"], f"/{name}", **attributes))
        return f"{name}_out"

    def constant(self, name: str, values: object, dtype: object = np.int64) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def matrix(self, name: str, *shape: int) -> str:
        scale = np.sqrt(2 / np.prod(shape[1:] if len(shape) > 2 else shape[:1]))
        return self.constant(name, scale * self._random.standard_normal(shape), np.float32)

    def save(self, path: Path, shape: list, output: str) -> Path:
        graph = helper.make_graph(
            self.nodes, path.stem, [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], self.weights,
        )  # fmt: skip
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        return path


def make_recognizer(path: Path, *, width: int = 32, blocks: int = 6) -> Path:
    """Convolutions over an image of any height and width; its columns become the steps of a text."""
    net, x = _Net(), "x"
    for i in range(blocks):
        channels = 3 if i == 0 else width
        kernel = net.matrix(f"conv{i}.weight", width, channels, 3, 3)
        x = net.op("Conv", f"conv{i}", [x, kernel], kernel_shape=[3, 3], pads=[1] * 4)
        x = net.op("Mul", f"swish{i}", [x, net.op("Sigmoid", f"gate{i}", [x])])
    x = net.op("ReduceMean", "columns", [x], axes=[2], keepdims=0)
    x = net.op("Transpose", "steps", [x], perm=[0, 2, 1])
    scores = net.op("MatMul", "head", [x, net.matrix("head.weight", width, 64)])
    return net.save(path, ["n", 3, "h", "w"], scores)


def make_transformer(path: Path, *, width: int = 64, heads: int = 4, layers: int = 2) -> Path:
    """The lengths of its reshapes are computed while it runs."""
    net, x = _Net(), "x"
    split, whole = net.constant("split", [0, 0, heads, -1]), net.constant("whole", [0, 0, -1])
    for i in range(layers):
        three = []
        for part in "qkv":
            made = net.op("MatMul", f"{part}{i}", [x, net.matrix(f"{part}{i}.weight", width, width)])
            made = net.op("Reshape", f"{part}{i}_split", [made, split])
            three.append(
                net.op("Transpose", f"{part}{i}_heads", [made], perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3])
            )
        scores = net.op("Softmax", f"weights{i}", [net.op("MatMul", f"scores{i}", three[:2])], axis=-1)
        mixed = net.op("Transpose", f"mixed{i}", [net.op("MatMul", f"mix{i}", [scores, three[2]])], perm=[0, 2, 1, 3])
        joined = net.op("Reshape", f"joined{i}", [mixed, whole])
        x = net.op(
            "Add", f"x{i}", [x, net.op("MatMul", f"out{i}", [joined, net.matrix(f"out{i}.weight", width, width)])]
        )
    return net.save(path, ["n", "length", width], x)
