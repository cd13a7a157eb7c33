from __future__ import annotations

import pytest

from inc_tb.show.quantities import duration, number, quantity, size, title


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("size_kb", 10140.0, "10.1 MB"), ("size_kb", 38.05, "38.0 kB"), ("python_memory_mb", 12345.678, "12.3 GB"),
        ("latency_ms", 0.4473, "447 µs"), ("latency_ms", 65.4321, "65.4 ms"), ("wall_s", 90.0, "90 s"),
        ("samples_per_s", 1234567.0, "1,234,567"), ("f1", 0.91234, "0.9123"), ("macs", 10140.0, "10,140"),
    ],
)  # fmt: skip
def test_values_by_the_unit_in_their_name(name: str, value: float, told: str) -> None:
    assert quantity(name, value) == told


@pytest.mark.parametrize(
    ("bytes_", "told"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_949, "1,000 kB"), (999_950, "1.0 MB"), (10_140_000, "10.1 MB")],
)
def test_sizes_on_either_side_of_a_unit(bytes_: float, told: str) -> None:
    assert size(bytes_) == told


def test_times() -> None:
    assert [duration(us) for us in (0.25, 12.0, 999.0, 22695.1, 2.5e6)] == [
        "0.2 µs",
        "12 µs",
        "999 µs",
        "22.7 ms",
        "2.5 s",
    ]


def test_numbers_have_no_exponent_that_a_reader_has_to_count() -> None:
    assert [number(value) for value in (0.0, 1.014e4, -123456.7, 0.00012345, 1.2e-7, 3.21e12)] == [
        "0", "10,140", "-123,457", "0.0001234", "1.2e-07", "3.21e+12",
    ]  # fmt: skip


def test_titles_leave_the_unit_to_the_values() -> None:
    assert [title(name) for name in ("size_kb", "latency_ms", "samples_per_s", "my_score")] == [
        "size", "latency", "samples per s", "my score",
    ]  # fmt: skip
