"""Ops that are rounded only where what they read is: those behind kept ops are kept along with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

_FOLLOWERS = {
    "maxpool", "avgpool", "adaptiveavgpool", "adaptivemaxpool", "relu", "relu6", "hardtanh", "clamp", "cat",
    "interpolate", "upsample", "pixelshuffle", "pad", "flip", "stack", "mean", "max", "min",
}  # fmt: skip
"""They pass a rounding on and start none."""


class Call(Protocol):
    @property
    def sources(self) -> frozenset[str]:
        """Ops that make what it reads."""
        ...

    @property
    def is_follower(self) -> bool: ...

    @property
    def whole(self) -> str:
        """What is the same for calls that are kept together; "" where it is kept by itself."""
        ...


def is_follower(kind: str) -> bool:
    """Whether an op is rounded only where what it reads is."""
    bare = kind.lower().replace("_", "")
    return bare.removesuffix("1d").removesuffix("2d").removesuffix("3d") in _FOLLOWERS


def with_followers(keep: Iterable[str], calls: Mapping[str, Call]) -> list[str]:
    """Also what only follows kept ops, such as the activation behind them: FX would round what it makes."""
    kept = dict.fromkeys(keep)
    wholes = {calls[name].whole for name in kept if name in calls} - {""}
    done = set(kept)
    for name, call in calls.items():
        if call.whole in wholes:
            done.add(name)
        elif call.is_follower and call.sources and call.sources <= done and name not in done:
            kept[name] = None
            done.add(name)
    return list(kept)
