"""The settings of a quantizer, each one of its choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inc_tb.errors import UsageError

Choices = Mapping[str, Sequence[Any]]


def check_choices(settings: Mapping[str, Any], choices: Choices) -> None:
    """Raise UsageError for a setting that is none of its choices."""
    for name, there in choices.items():
        if settings[name] not in there:
            raise UsageError(f"{name}={settings[name]!r} was given; expected one of {list(there)}.")
