"""How the time grows with what is given: matching two models, importing a trace, writing and loading a run.

python -m benchmarks.growth [--sizes 12500 50000 200000]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import inc_tb
from inc_tb.frameworks.models import open_pair
from inc_tb.sources.logged import log_runs

WIDTH = 8


class Net:
    """Nodes one after the other; where it is quantized, what `rounded` gets has a QuantizeLinear behind it."""

    def __init__(self, *, is_quantized: bool) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.is_quantized = is_quantized
        self._ops = 0

    def add(self, kind: str, *reads: str) -> str:
        self._ops += 1
        return self._node(kind, reads, f"{kind}_{self._ops}")

    def _node(self, kind: str, reads: Sequence[str], made: str) -> str:
        self.nodes.append(helper.make_node(kind, reads, [made]))
        return made

    def rounded(self, tensor: str) -> str:
        if not self.is_quantized:
            return tensor
        whole = self._node("QuantizeLinear", [tensor, "scale", "zero"], f"{tensor}_quantized")
        return self._node("DequantizeLinear", [whole, "scale", "zero"], f"{tensor}_dequantized")


def model(make: Callable[[Net, int], str], count: int, *, is_quantized: bool) -> onnx.ModelProto:
    net = Net(is_quantized=is_quantized)
    out = make(net, count)
    weights = np.linspace(-1, 1, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH)
    constants = {"w": weights, "scale": np.float32(0.02), "zero": np.uint8(128)}
    graph = helper.make_graph(
        net.nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def equal_ops(net: Net, count: int) -> str:
    """All of which read one tensor."""
    x = net.rounded("x")
    return net.add("MatMul", net.add("Sum", *(net.add("Relu", x) for _ in range(count))), "w")


def layers(net: Net, count: int) -> str:
    """Each behind the one before it, and of two nodes."""
    x = net.rounded("x")
    for _ in range(count // 2):
        x = net.rounded(net.add("Relu", net.add("MatMul", x, "w")))
    return x


def nested_spans(count: int) -> list[dict[str, object]]:
    """Calls of each other, as deep as they are many."""
    about = {"ph": "X", "pid": 1, "tid": 1}
    run = {**about, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 2 * count + 2}
    calls = (
        {**about, "cat": "cpu_op", "name": f"aten::op{at % 9}", "ts": 1 + at, "dur": 2 * (count - at)}
        for at in range(count)
    )
    return [run, *calls]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[12_500, 50_000, 200_000])
    sizes = parser.parse_args().sizes
    with tempfile.TemporaryDirectory() as place:
        for name, case in (
            ("matching, ops that read one tensor", lambda n: _match(equal_ops, n)),
            ("matching, layers one behind the other", lambda n: _match(layers, n)),
            ("importing a trace of nested spans", lambda n: _import(Path(place), n)),
            ("loading that run", lambda n: _load(Path(place), n)),
        ):
            told = ", ".join(f"{size:,}: {case(size):.1f} s" for size in sizes)
            print(f"{name:<40}{told}", flush=True)


def _match(make: Callable[[Net, int], str], count: int) -> float:
    pair = [model(make, count, is_quantized=is_quantized) for is_quantized in (False, True)]
    with _timed() as took:
        open_pair(*pair)
    return took[0]


def _import(place: Path, count: int) -> float:
    trace = place / f"{count}.json"
    trace.write_text(json.dumps({"traceEvents": nested_spans(count)}))
    with _timed() as took:
        (imported,) = inc_tb.import_workspace(trace)
        log_runs(imported, place / "logs", str(count))
    return took[0]


def _load(place: Path, count: int) -> float:
    with _timed() as took:
        inc_tb.load(place / "logs" / str(count))
    return took[0]


@contextmanager
def _timed() -> Iterator[list[float]]:
    found: list[float] = []
    began = time.perf_counter()
    yield found
    found.append(time.perf_counter() - began)


if __name__ == "__main__":
    main()
