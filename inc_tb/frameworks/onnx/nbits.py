"""Weights of MatMulNBits: a few bits each, packed into bytes, with a scale for every block."""

from __future__ import annotations

import numpy as np
import onnx

from inc_tb.frameworks.onnx.model import Model, attribute
from inc_tb.frameworks.ops import Array, Quantization


def nbits_quantization(node: onnx.NodeProto) -> Quantization:
    bits = attribute(node, "bits", 4)
    return Quantization(f"uint{bits}", None, None, 0, 2**bits - 1, axis=1, block=attribute(node, "block_size", 32))


def unpack_nbits(model: Model, node: onnx.NodeProto) -> Array:
    """Blockwise weights [N, blocks, bytes] as float [K, N], the layout of MatMul's second input."""
    bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 32)
    size_k, size_n = attribute(node, "K", 0), attribute(node, "N", 0)
    packed = model.constant(node.input[1]).astype(np.uint8).reshape(size_n, -1)
    scales = model.constant(node.input[2]).astype(np.float32).reshape(size_n, -1)
    blocks = scales.shape[1]
    values = _unpack(packed, bits)[:, : blocks * block].reshape(size_n, blocks, block)
    zeros: Array = np.full((size_n, blocks), 2 ** (bits - 1), np.float32)
    if len(node.input) > 3 and node.input[3]:
        given = model.constant(node.input[3])
        is_packed = given.dtype == np.uint8
        rows = given.reshape(size_n, -1)
        zeros = (_unpack(rows, bits)[:, :blocks] if is_packed else rows).astype(np.float32)
    floats = (values.astype(np.float32) - zeros[:, :, None]) * scales[:, :, None]
    return np.ascontiguousarray(floats.reshape(size_n, -1)[:, :size_k].T)


def _unpack(packed: Array, bits: int) -> Array:
    """Rows of bytes, lowest bits first."""
    parts = [(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(packed.shape[0], -1)
