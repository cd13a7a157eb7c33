"""Results show themselves, but how is said above all of them, in inc_tb/show, which is loaded when it is asked."""

from __future__ import annotations

from importlib import import_module
from typing import ClassVar


class Shown:
    """A result that a notebook shows as a card."""

    _card: ClassVar[str]
    """Where that is made, in inc_tb/show/cards: module:function."""

    def _repr_html_(self) -> str:
        module, _, function = self._card.partition(":")
        return str(getattr(import_module(f"inc_tb.show.cards.{module}"), function)(self))
