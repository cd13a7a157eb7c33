"""Formats of weights against the packages that make them."""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from gguf import quants
from scipy.stats import norm
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.quantization.quant_primitives import (
    MappingType,
    choose_qparams_affine,
    dequantize_affine,
    quantize_affine,
)

from inc_tb.errors import UsageError
from inc_tb.frameworks.ops import Array
from inc_tb.llm import formats
from inc_tb.llm.formats import bell_loss, find_format, loss


@pytest.fixture(scope="module")
def weight() -> Array:
    """Of all sizes, a row of zeros and one outlier among them."""
    drawn = np.random.default_rng(1).standard_normal((32, 256)).astype(np.float32)
    drawn *= np.float32(2.0) ** np.linspace(-12, 6, 32, dtype=np.float32)[:, None]
    drawn[3] = 0
    drawn[5, 7] = 1000
    return drawn


@pytest.mark.parametrize("group", [32, 256])
@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@pytest.mark.parametrize("kind", ["", "-asym"])
def test_integers_are_those_of_torchao(weight: Array, bits: int, group: int, kind: str) -> None:
    x, block = torch.from_numpy(weight), [1, group]
    mapping = MappingType.ASYMMETRIC if kind else MappingType.SYMMETRIC
    low, high = (0, 2**bits - 1) if kind else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    dtype = torch.int32
    scale, zero = choose_qparams_affine(x, mapping, block, dtype, low, high, scale_dtype=torch.float32)
    q = quantize_affine(x, block, scale, zero, dtype, low, high)
    expected = dequantize_affine(q, block, scale, zero, dtype, low, high, output_dtype=torch.float32).numpy()
    name = f"int{bits}{f'-g{group}' if group < 256 else ''}{kind}"
    np.testing.assert_array_equal(find_format(name).round(weight), expected)


@pytest.mark.parametrize(
    ("small", "dtype"),
    [
        (formats._E4M3, ml_dtypes.float8_e4m3fn),
        (formats._E5M2, ml_dtypes.float8_e5m2),
        (formats._E2M3, ml_dtypes.float6_e2m3fn),
        (formats._E3M2, ml_dtypes.float6_e3m2fn),
        (formats._E2M1, ml_dtypes.float4_e2m1fn),
    ],
)
def test_small_floats_are_those_of_ml_dtypes(small: formats._Small, dtype: type) -> None:
    every = np.arange(1 << small.bits, dtype=np.uint8).view(dtype).astype(np.float32)
    every = np.unique(every[np.isfinite(every)])
    between = (every[1:] + every[:-1]) / 2  # where ties are
    drawn = np.random.default_rng(0).uniform(-small.largest, small.largest, 20_000).astype(np.float32)
    x = np.concatenate([every, between, drawn, drawn * np.float32(1e-4)])
    np.testing.assert_array_equal(formats.round_small(small, x), x.astype(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("mxfp8", torch.float8_e4m3fn),
        ("mxfp8-e5m2", torch.float8_e5m2),
        ("mxfp6", DTYPE_FP6_E2M3),
        ("mxfp6-e3m2", DTYPE_FP6_E3M2),
        ("mxfp4", torch.float4_e2m1fn_x2),
    ],
)
def test_microscaling_is_that_of_torchao(weight: Array, name: str, dtype: object) -> None:
    expected = MXTensor.to_mx(torch.from_numpy(weight), dtype, 32).dequantize(torch.float32)
    np.testing.assert_array_equal(find_format(name).round(weight), expected.numpy())


def test_nvfp4_is_that_of_torchao(weight: Array) -> None:
    x = torch.from_numpy(weight)
    over = per_tensor_amax_to_scale(x.abs().max())
    expected = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=over).dequantize(torch.float32)
    np.testing.assert_array_equal(find_format("nvfp4").round(weight), expected.numpy())


@pytest.mark.parametrize("name", formats._GGUF)
def test_types_of_gguf_are_those_of_its_package(weight: Array, name: str) -> None:
    kind = gguf.GGMLQuantizationType[name.upper()]
    expected = quants.dequantize(quants.quantize(weight, kind), kind)
    np.testing.assert_array_equal(find_format(name).round(weight), expected)
    columns, taken = gguf.GGML_QUANT_SIZES[kind]
    assert find_format(name).bits_per_weight(256) == taken * 8 / columns


def test_nf4_has_the_published_values() -> None:
    """Quantiles of a bell from both sides, with zero in both, as the paper on QLoRA makes them."""
    offset = 0.9677083
    above, below = norm.ppf(np.linspace(offset, 0.5, 9)[:-1]), -norm.ppf(np.linspace(offset, 0.5, 8)[:-1])
    levels = np.sort([*above, 0.0, *below])
    np.testing.assert_allclose(formats._NF4, levels / levels.max(), atol=2e-6)
    row = np.concatenate([formats._NF4, formats._NF4, np.full(32, 0.05, np.float32)])[None] * np.float32(3)
    expected = np.concatenate([row[:, :32], np.full((1, 32), 3 * formats._NF4[8])], axis=1)
    np.testing.assert_array_equal(find_format("nf4").round(row), expected)


def test_fp8_has_a_scale_for_each_row(weight: Array) -> None:
    scale = np.maximum(np.abs(weight).max(axis=1, keepdims=True) / np.float32(448), np.float32(1e-12))
    expected = (weight / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    np.testing.assert_array_equal(find_format("fp8-e4m3").round(weight), expected)


def test_halves(weight: Array) -> None:
    np.testing.assert_array_equal(
        find_format("bf16").round(weight), weight.astype(ml_dtypes.bfloat16).astype(np.float32)
    )
    np.testing.assert_array_equal(find_format("fp16").round(weight), weight.astype(np.float16).astype(np.float32))


def test_a_last_group_may_be_shorter() -> None:
    drawn = np.random.default_rng(2).standard_normal((4, 40)).astype(np.float32)
    found = find_format("int4-g32").round(drawn)
    np.testing.assert_array_equal(found[:, 32:], find_format("int4").round(drawn[:, 32:]))


def test_what_a_bell_gets() -> None:
    """By what is known: a uniform grid of 2^16 steps over 2 a has noise step²/12, and mantissas of 3 bits 31.5 dB."""
    assert bell_loss("int4-g32").sqnr_db == pytest.approx(20.3, abs=0.5)
    assert bell_loss("fp8-e4m3").sqnr_db == pytest.approx(31.5, abs=0.3)
    assert bell_loss("int8").sqnr_db - bell_loss("int7").sqnr_db == pytest.approx(6.02, abs=0.2)
    assert (
        bell_loss("nf4").sqnr_db > bell_loss("int4-g64").sqnr_db > bell_loss("int4").sqnr_db > bell_loss("int3").sqnr_db
    )
    assert loss(np.ones(3), np.ones(3)) == (float("inf"), 0)
    assert loss(np.array([1.0, 2, 0, 2]), np.array([0.0, 2, 0, 2])) == (pytest.approx(10 * np.log10(9)), 1 / 3)


@pytest.mark.parametrize(("name", "bits"), [("int4-g128", 4.125), ("int4-g32-asym", 4.625), ("mxfp4", 4.25),
                                            ("nvfp4", 4.5), ("nf4", 4.5), ("int8", 8.0625), ("bf16", 16)])  # fmt: skip
def test_bits_with_their_scales(name: str, bits: float) -> None:
    assert find_format(name).bits_per_weight(256) == bits


@pytest.mark.parametrize("name", ["int9", "int4-g1", "fp4", "q4_k", "", "int4-g128-sym"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        find_format(name)
