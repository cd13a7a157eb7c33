"""How many samples run at once, and in how many passes, so that their arrays stay within the budget."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from inc_tb.errors import MismatchError
from inc_tb.frameworks.apart import are_apart
from inc_tb.frameworks.feeds import count_rows, split
from inc_tb.frameworks.onnx.gauge import Gauge, told_bytes
from inc_tb.frameworks.onnx.graph import Graph
from inc_tb.frameworks.ops import Batch

_COPIES = 6
"""Of a tensor that is compared: the reference's, the quantized model's, the isolated one, each once where ONNX Runtime
has made it and once as it is handed over. The C library gives the first back to the machine only when it can."""
_HELD = 4
"""Of what is held on the way and not fetched: in the reference, and in the quantized model, where a tensor is rounded
beside itself; the ops cut out of it hold theirs as long."""
_FOR_SESSIONS = 8
"""The part of the budget that the weights of several passes may take to stay open."""
_RUN = 8
"""Times what a plain run holds at most, in the arena that keeps it: its blocks double, and rounding copies tensors."""
_BESIDE = 64 << 20
"""Bytes that do not depend on the samples: arrays that wait for their statistics, what sessions take beside weights."""
_OF_OP = 64 << 10
"""Bytes of the statistics of an op."""


def fitting(reference: Graph, feeds: Batch, whole: Collection[str], budget: int) -> int:
    """How many samples of a batch may run at once where nothing but the results is fetched."""
    rows, gauge = count_rows(feeds, whole), Gauge(reference)
    one = next(split(feeds, None, 1, whole))
    try:
        sizes = told_bytes(reference, one) or gauge.measure(one)
    except MismatchError:
        return rows  # it was made for this many
    most = max(1, budget // max(1, _RUN * gauge.live_bytes(sizes)))
    return most if rows > most and are_apart(gauge.results, feeds, whole) else rows


class Planner:
    def __init__(
        self, reference: Graph, quantized: Graph, whole: Collection[str], budget: int, tell: Callable[[str], None]
    ) -> None:
        """`whole` are inputs that are the same for all samples."""
        self.rows = 1
        """How many samples run at once."""
        self.has_arena = False
        """A single pass needs the same again and again; of several, each would keep what it has had."""
        self._reference = reference
        self._weights = reference.model.weight_bytes() + 2 * quantized.model.weight_bytes()
        self._whole = whole
        self._budget = budget
        self._tell = tell
        self._parts: list[list[str]] = []
        self._largest: dict[str, int] = {}
        self._is_apart: bool | None = None

    def plan(self, feeds: Batch, tensors: Sequence[str], asked: int | None) -> list[list[str]]:
        """The tensors of each pass, again when larger samples come; all samples go through one pass after the other."""
        rows = count_rows(feeds, self._whole)
        sizes = {
            name: array.size // rows if array.ndim and name not in self._whole else array.size
            for name, array in feeds.items()
        }
        is_larger = any(size > self._largest.get(name, -1) for name, size in sizes.items())
        if is_larger or (rows > self.rows and self._is_apart is not True):
            self._largest = {name: max(size, self._largest.get(name, 0)) for name, size in sizes.items()}
            self._make(feeds, rows, tensors, asked)
        kept = set(tensors)
        return [[tensor for tensor in part if tensor in kept] for part in self._parts]

    def cut(self, feeds: Batch, most: int) -> Iterator[Batch]:
        """Whole, where a sample gives something else beside others."""
        return split(feeds, None, most, self._whole) if self._is_apart is not False else iter([feeds])

    @property
    def can_stay_open(self) -> bool:
        return len(self._parts) == 1 or len(self._parts) * self._weights * _FOR_SESSIONS <= self._budget

    @property
    def for_weights(self) -> int:
        """Bytes of weights that may be kept in real numbers: what the weights of several passes would have taken."""
        return self._budget // _FOR_SESSIONS if len(self._parts) == 1 else 0

    def _make(self, feeds: Batch, rows: int, tensors: Sequence[str], asked: int | None) -> None:
        gauge = Gauge(self._reference)
        sizes, count = self._measured(gauge, feeds, rows)
        live = _HELD * gauge.live_bytes(sizes)
        need = live + _COPIES * sum(sizes[tensor] for tensor in tensors)
        self.rows = asked or max(1, self._for_arrays // max(1, need))
        if rows > self.rows and self._is_apart is None:
            self._is_apart = are_apart(gauge.results, feeds, self._whole)
        if self._is_apart is False:
            self.rows = rows
        at_once = self.rows // count
        self._parts = self._passes({tensor: at_once * sizes[tensor] for tensor in tensors}, at_once * live)
        self.has_arena = len(self._parts) == 1

    def _measured(self, gauge: Gauge, feeds: Batch, rows: int) -> tuple[dict[str, int], int]:
        """Bytes by tensor, and of how many samples."""
        if rows > 1 and self._is_apart is not False:
            try:
                return gauge.measure(next(split(feeds, None, 1, self._whole))), 1
            except MismatchError:
                self._is_apart = False  # it was made for this many
        return gauge.measure(feeds), rows

    @property
    def _for_arrays(self) -> int:
        beside = self._budget // _FOR_SESSIONS + _BESIDE + _OF_OP * len(self._reference.steps)
        return self._budget - min(beside, self._budget // 2)

    def _passes(self, sizes: Mapping[str, int], live: int) -> list[list[str]]:
        parts: list[list[str]] = [[]]
        used, least = live, live + _COPIES * max(sizes.values(), default=0)
        most = max(self._for_arrays, least)  # what one pass cannot do without, the others may have as well
        for tensor, size in sizes.items():
            if parts[-1] and used + _COPIES * size > most:
                parts.append([])
                used = live
            parts[-1].append(tensor)
            used += _COPIES * size
        if least > max(self._budget, _BESIDE):
            self._tell(
                f"even one tensor at a time takes about {least >> 20} MiB with a batch of {self.rows}, more than the "
                f"{self._budget >> 20} MiB that were allowed"
            )
        return parts
