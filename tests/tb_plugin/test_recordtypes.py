"""The page's types of what is stored are those of the Python records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal

import msgspec
import pytest

from tb_plugin.frontend import generate_types


class Point(msgspec.Struct, array_like=True):
    x: float
    y: float | None


class Picture(msgspec.Struct, rename="camel"):
    """A picture.

    Not told to the page.
    """

    all_points: list[Point]
    kind: Literal["line", "bar"] = "bar"
    sizes: list[int | None] = []
    names: dict[str, tuple[int, bool]] = {}


class Odd(msgspec.Struct):
    several: set[int]


def test_the_types_of_the_page_are_those_of_the_records() -> None:
    stored = generate_types.TARGET.read_text(encoding="utf-8")
    assert stored == generate_types.written(), "run python tb_plugin/frontend/generate_types.py"


def test_what_a_struct_is_in_typescript() -> None:
    """Fields with a default may be missing, structs stored as arrays are tuples, and names are those of the JSON."""
    module = SimpleNamespace(RowKind=Literal["pictures"], Point=Point, Picture=Picture, _Hidden=Odd)
    assert (
        generate_types.written(module)
        == generate_types.HEAD
        + """
export type RowKind =
  | "pictures";

/** A picture. */
export interface Picture {
  allPoints: Point[];
  kind?: "bar" | "line";
  sizes?: (number | null)[];
  names?: Record<string, [number, boolean]>;
}

export type Point = [x: number, y: number | null];
"""
    )


def test_a_type_that_nobody_thought_of() -> None:
    with pytest.raises(TypeError, match=r"inc_tb\.records stores a SetType"):
        generate_types.written(SimpleNamespace(RowKind=Literal["odd"], Odd=Odd))
