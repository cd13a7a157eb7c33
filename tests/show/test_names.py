from __future__ import annotations

import pytest

from inc_tb.show.names import shorten, shortened


def test_the_middle_goes_first() -> None:
    assert shorten("/conv1/Conv", 11) == "/conv1/Conv"
    # Of 10 characters 3 are of the beginning, 6 of the end.
    assert shorten("/encoder/dense/MatMul", 10) == "/en…MatMul"
    assert shorten("", 5) == ""


def test_what_all_names_share_goes_before_anything_else() -> None:
    names = ["jax2tf/pjit/MagikaV2/Conv_0/AddV2", "jax2tf/pjit/MagikaV2/Dense_0/Mul"]
    assert shortened(names, 17) == ["jax2…Conv_0/AddV2", "jax2…Dense_0/Mul"]
    assert shortened(names, 40) == names


@pytest.mark.parametrize("width", [16, 20, 24, 30])
def test_names_that_differ_in_the_middle_stay_different(width: int) -> None:
    names = [f"/layoutlmv3/encoder/layer.{i}/attention/self/query/MatMul" for i in range(12)]
    found = shortened([*names, "/layoutlmv3/embeddings/LayerNorm/Add"], width)
    assert len(set(found)) == 13
    assert all(len(name) <= width and name.startswith("/lay") and "…" in name for name in found)
    # Two rows of one op are still the same one.
    assert len(set(shortened([names[0], names[0]], width))) == 1
