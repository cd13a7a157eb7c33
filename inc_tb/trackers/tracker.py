"""What a tracker is given, and what a tracker is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from inc_tb.records import short_repr
from inc_tb.trackers.tables import Table


@dataclass(repr=False)
class Point:
    """What belongs to one step."""

    __repr__ = short_repr

    step: int | None = None
    """None where none was told."""
    metrics: dict[str, float] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)


@dataclass(repr=False)
class Entry:
    """One run as a tracker gets it. All of it is made before a tracker is given any."""

    __repr__ = short_repr

    name: str
    group: str = ""
    """What it is one of several of; "" where it is alone: then it belongs into a run that the user has begun."""
    points: list[Point] = field(default_factory=list)
    """Steps grow; the last one is what stands."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Values of JSON."""
    tags: dict[str, str] = field(default_factory=dict)
    fallback: list[str] | None = None
    """Ops in fp32; None where that is not known."""
    files: dict[str, bytes] = field(default_factory=dict)

    def named_tables(self, *, goes_on: bool = False) -> Iterator[tuple[str, Table]]:
        """The newest in front, those of other steps as step-1/ops; where a run goes on all that have a step."""
        with_tables = [point for point in self.points if point.tables]
        for point in with_tables:
            is_front = point is with_tables[-1] and (point.step is None or not goes_on)
            for name, table in point.tables.items():
                yield name if is_front else f"step-{point.step}/{name}", table


class Sent(NamedTuple):
    """Where an entry is now."""

    name: str
    id: str
    """Of the tracker's run."""
    place: str


class Tracker(Protocol):
    def put(self, entry: Entry) -> Sent:
        """Store all of it in one run; a run that could not be stored whole is not left behind."""
        ...


TRACKERS: Mapping[str, str] = {
    "mlflow": "inc_tb.trackers.mlflow:MlflowTracker",
    "wandb": "inc_tb.trackers.wandb:WandbTracker",
}
"""Name -> its class, which is called with the place that follows the name, and with the project."""
