"""The model is held to its fp32 model as part of the project's own tests."""

from __future__ import annotations

import pytest

from inc_tb.testing import Hold


def test_it_keeps_the_limits_of_the_project(hold_to_fp32: Hold) -> None:
    hold_to_fp32("fp32.onnx", "int8.onnx", "samples.npz")


@pytest.mark.inc_tb("total_sqnr_db>=10", max_bad=0)
def test_it_keeps_limits_of_its_own(hold_to_fp32: Hold) -> None:
    diagnosis = hold_to_fp32("fp32.onnx", "int8.onnx", "samples.npz")
    assert diagnosis.samples == 64
