"""Where the channels of a tensor are when its values are in another shape."""

from __future__ import annotations

import pytest

from inc_tb.frameworks.channels import reshaped_axis


@pytest.mark.parametrize(
    ("before", "after", "axis", "wanted"),
    [
        ([None, 7, 8, 8], [None, 7, 64], 1, 1),
        ([2, 7, 8, 8], [2, 7, 64], 1, 1),
        ([None, 64, 7], [None, 8, 8, 7], -1, 3),
        ([None, 7, 64], [None, 1, 7, 64], 1, 2),
        ([None, 1, 7, 64], [None, 7, 64], 2, 1),
        ([None, 12, 64], [None, 768], -1, None),
        ([None, 768], [None, 12, 64], -1, None),
        ([None, None, 7], [None, 7], -1, None),
        ([None, 7, 8], [None, None], 1, None),
        ([7, 8], [56], 0, None),
        ([], [1], 0, None),
    ],
)
def test_channels_stay_where_as_many_follow_as_many(
    before: list[int | None], after: list[int | None], axis: int, wanted: int | None
) -> None:
    assert reshaped_axis(before, after, axis) == wanted
