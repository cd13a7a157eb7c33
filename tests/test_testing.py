"""The pytest plugin, switched on in a project of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gate.runs import SAMPLES, changed, log, models

pytest_plugins = ["pytester"]
TESTS = """
import numpy as np
import pytest

SAMPLES = {"input": np.load("samples.npy")}


@pytest.mark.inc_tb("added_sqnr_db>=20", max_bad=0)
def test_good(hold_to_fp32):
    assert hold_to_fp32("fp32.onnx", "int8.onnx", SAMPLES, run="logged").samples == 24


@pytest.mark.inc_tb("added_sqnr_db>=30")
def test_bad(hold_to_fp32):
    hold_to_fp32("fp32.onnx", "faulty.onnx", SAMPLES)


@pytest.mark.inc_tb(base="base")
def test_as_good_as_before(hold_to_fp32):
    hold_to_fp32("fp32.onnx", "int8.onnx", SAMPLES)


@pytest.mark.inc_tb(base="base")
def test_worse_than_before(hold_to_fp32):
    hold_to_fp32("fp32.onnx", "faulty.onnx", SAMPLES)


def test_of_the_project(hold_to_fp32):
    hold_to_fp32("fp32.onnx", "int8.onnx", SAMPLES)


@pytest.mark.inc_tb(limit="x>=1")
def test_misspelled(hold_to_fp32):
    raise AssertionError
"""


def test_models_are_held_to_their_limits_and_to_a_base(pytester: pytest.Pytester) -> None:
    import numpy as np

    folder = pytester.path
    fp32, int8 = models(folder)
    changed(int8, folder / "faulty.onnx", {"r1_scale": 12.0})
    log(folder / "base", fp32, int8, SAMPLES[:24])
    np.save(folder / "samples.npy", SAMPLES[:24])
    pytester.makeconftest('pytest_plugins = ["inc_tb.testing"]')
    pytester.makepyprojecttoml('[tool.inc-tb.check]\nlimits = ["samples>=25"]\n')
    pytester.makepyfile(test_models=TESTS)
    done = pytester.runpytest_inprocess("--strict-markers", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist")
    done.assert_outcomes(passed=2, failed=3, errors=1)
    done.stdout.fnmatch_lines_random(
        [
            "*added_sqnr_db>=30: does not hold for * ops: /conv1/Conv has *",
            "*The op that did it: /conv1/Conv*",
            "*samples>=25: is 24*",
            "*the marker inc_tb was given ?'limit'?; expected limits, max_bad or base.*",
        ]
    )
    assert Path(folder, "logged").is_dir()
