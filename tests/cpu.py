"""What the int8 kernels of this machine do."""

from __future__ import annotations

import functools

import numpy as np


@functools.cache
def saturates() -> bool:
    """Whether ONNX Runtime cuts off sums of products of uint8 and int8, as it does on processors without VNNI.

    Real models then lose more than was rounded. Their users are told to quantize weights to 7 bits, and so do the tests
    that hold real models to what was rounded.
    """
    import onnxruntime
    from onnx import parser

    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (uint8[1, 64] a, int8[64, 1] b) => (int32[1, 1] y) '
        "{ y = MatMulInteger(a, b) }"
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"a": np.full((1, 64), 255, np.uint8), "b": np.full((64, 1), 127, np.int8)}
    return bool(session.run(None, feeds)[0].item() != 64 * 255 * 127)
