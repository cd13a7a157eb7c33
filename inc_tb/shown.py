"""Results show themselves, but how is said above all of them, in inc_tb/show, which is loaded when it is asked."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar


class Shown:
    """A result that a notebook shows as a card."""

    _card: ClassVar[str]
    """Where that is made, in inc_tb/show/cards: module:function."""

    def _repr_html_(self) -> str:
        return str(above(f"cards.{self._card}")(self))


def above(place: str) -> Any:
    """A function of inc_tb/show, as module:function."""
    module, _, function = place.partition(":")
    return getattr(import_module(f"inc_tb.show.{module}"), function)
