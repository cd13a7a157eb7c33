"""The error of single samples, of the first ones: what two runs over the same data are compared by.

Sums over all samples tell how large an error is; how much it varies from sample to sample, which tells a change from
noise, only single ones do. How many are kept does not depend on how many there are, so memory does not grow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from inc_tb.frameworks.ops import Array, Batch, Op, Pair, Role
from inc_tb.measure.previews import Previews, Ranked, ranked
from inc_tb.measure.stats import energies
from inc_tb.records import Preview, SampleRow, short_repr

MOST_OF_OUTPUTS = 4096
"""Samples whose error is kept of what the model gives; of as many it is known which they were."""
MOST_OF_OPS, _FEWEST_OF_OPS = 256, 8
_MOST_NUMBERS = 1 << 17
"""Of all other ops together, as long as that is no less than the fewest: TensorBoard holds them all in memory."""
ID_BYTES = 8
_WHOLE = 1 << 8 * ID_BYTES

Numbers = npt.NDArray[np.float32]
Key = tuple[str, Role]


@dataclass(repr=False)
class BySample:
    """What of it a diagnosis holds."""

    __repr__ = short_repr

    ids: bytes = b""
    """By which a sample is known again, so many bytes each, in the order of the data."""
    rows: list[SampleRow] = field(default_factory=list)
    previews: list[Preview] = field(default_factory=list)
    """What the worst samples look like, the worst first; none where they show nothing, or were not wanted."""

    def __bool__(self) -> bool:
        return bool(self.rows)


def numbers(stored: bytes) -> Numbers:
    """Of a field of a SampleRow."""
    return np.frombuffer(stored, "<f4")


@dataclass
class SampleIds:
    """Which samples there were, by what they hold."""

    first: bytes = b""
    total: int = 0
    """Sum over all samples: the same in any order, and of shards the sum of theirs."""

    def update(self, batch: Batch, samples: int) -> None:
        by_sample = {n: a for n, a in sorted(batch.items()) if a.ndim and len(a) == samples}
        shared = hashlib.blake2b()
        for name, array in sorted(batch.items()):
            shared.update(name.encode("utf-8", "surrogatepass"))
            if name not in by_sample:
                shared.update(np.ascontiguousarray(array).tobytes())
        for i in range(samples):
            found = shared.copy()
            for array in by_sample.values():
                found.update(np.ascontiguousarray(array[i]).tobytes())
            own = found.digest()[:ID_BYTES]
            self.total = (self.total + int.from_bytes(own, "little")) % _WHOLE
            if len(self.first) < MOST_OF_OUTPUTS * ID_BYTES:
                self.first += own

    def digest(self, samples: int) -> str:
        return f"{self.total:016x}-{samples}"


def _none() -> Numbers:
    return np.empty(0, np.float32)


@dataclass
class SampleSums:
    """Energy of the reference and of the error, of one tensor, for each of the first samples."""

    most: int
    power: Numbers = field(default_factory=_none)
    error: Numbers = field(default_factory=_none)

    def update(self, reference: Array, quantized: Array) -> None:
        """Of arrays whose first axis counts samples."""
        left = self.most - len(self.power)
        if left > 0 and reference.ndim:
            power, error = _energies(reference[:left], quantized[:left])
            self.power, self.error = np.append(self.power, power), np.append(self.error, error)


def _energies(reference: Array, quantized: Array) -> tuple[Numbers, Numbers]:
    x, y = (_as_rows(array) for array in (reference, quantized))
    with np.errstate(over="ignore", invalid="ignore"):
        power, error = energies(x, y)
        odd = np.flatnonzero(~(np.isfinite(power) & np.isfinite(error)))
        for i in odd.tolist():
            power[i], error[i] = _of_odd(x[i].astype(np.float64), y[i].astype(np.float64))
        return power.astype(np.float32), error.astype(np.float32)


def _of_odd(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Where the reference is not finite there is nothing to compare with."""
    known = np.isfinite(x)
    x, y = x[known], y[known]
    return float(x @ x), float((x - y) @ (x - y)) if np.isfinite(y).all() else np.inf


def _as_rows(array: Array) -> Array:
    rows = array.reshape(len(array), -1)
    return rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float32)


def outputs_of(ops: Sequence[Op], measured: Collection[str]) -> set[str]:
    """Ops whose results are the model's: those that nothing reads, or the nearest ones before them that are known."""
    by_name = {op.name: op for op in ops}
    read = {name for op in ops for name in op.inputs}
    waiting = [op.name for op in ops if op.name not in read]
    found, seen = set(), set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in by_name:
            continue
        seen.add(name)
        at = by_name[name].compared_at or name
        if at in measured:
            found.add(at)
        else:
            waiting += by_name[name].inputs
    return found


@dataclass
class Samples:
    """What one process knows of its samples, one by one."""

    ids: SampleIds = field(default_factory=SampleIds)
    batches: list[int] = field(default_factory=list)
    """How many samples each had."""
    sums: dict[Key, SampleSums] = field(default_factory=dict)
    lost: set[Key] = field(default_factory=set)
    """Tensors whose first axis does not count samples."""
    outputs: set[str] = field(default_factory=set)
    """Ops whose results are the model's."""
    previews: Previews = field(default_factory=Previews)
    _most: dict[str, int] = field(default_factory=dict)
    _rows: dict[Key, int] = field(default_factory=dict)

    def set_ops(self, ops: Sequence[Op]) -> None:
        measured = {op.name for op in ops if not op.note}
        self.outputs = outputs_of(ops, measured)
        each = _MOST_NUMBERS // (3 * max(1, len(measured)))
        most = min(MOST_OF_OPS, max(_FEWEST_OF_OPS, each))
        self._most = {op.name: MOST_OF_OUTPUTS if op.name in self.outputs else most for op in ops}

    def begin(self, batch: Batch, samples: int) -> None:
        self.ids.update(batch, samples)
        self.previews.begin(batch, samples, sum(self.batches), MOST_OF_OUTPUTS)
        self.batches.append(samples)
        self._rows = {}

    def see(self, pair: Pair) -> None:
        """Before its arrays are added up."""
        if pair.role in ("output", "isolated"):
            key = pair.op, pair.role
            if key not in self.sums and len(self.batches) > 1:
                self.lost.add(key)
            if pair.role == "output" and pair.op in self.outputs and pair.reference.ndim and self.previews.is_looking:
                self.previews.see(self._rows.get(key, 0), *_energies(pair.reference, pair.quantized))
            self._rows[key] = self._rows.get(key, 0) + (len(pair.reference) if pair.reference.ndim else 0)
            self.sums.setdefault(key, SampleSums(self._most[pair.op]))

    def add(self, key: Key, reference: Array, quantized: Array) -> None:
        if key in self.sums and key not in self.lost:
            self.sums[key].update(reference, quantized)

    def end(self) -> None:
        """Of a batch, all pairs of which were seen."""
        self.lost |= {key for key, rows in self._rows.items() if rows != self.batches[-1]}
        self.lost |= self.sums.keys() - self._rows.keys()
        self.previews.end()

    def stored(self) -> BySample:
        known = {key: found for key, found in self.sums.items() if key not in self.lost}
        rows = [
            SampleRow(op, found.power.tobytes(), found.error.tobytes(), self._added(known, op), op in self.outputs)
            for (op, role), found in known.items()
            if role == "output"
        ]
        shown = self.previews.worst if any(row.is_output for row in rows) else []
        return BySample(self.ids.first, rows, [preview for _, preview in shown])

    @staticmethod
    def _added(known: Mapping[Key, SampleSums], op: str) -> bytes:
        return known[op, "isolated"].error.tobytes() if (op, "isolated") in known else b""


def in_turns(parts: Sequence[Samples]) -> Samples:
    """Of several processes, each of which had every so-manieth batch: in the order of the batches."""
    order = sorted((turn, part) for part, found in enumerate(parts) for turn in range(len(found.batches)))
    whole = Samples(batches=[parts[part].batches[turn] for turn, part in order], outputs=parts[0].outputs)
    whole.lost = set().union(*(part.lost for part in parts))
    whole.ids.total = sum(part.ids.total for part in parts) % _WHOLE
    ends = [np.cumsum([0, *part.batches]) for part in parts]
    slices = [(part, slice(ends[part][turn], ends[part][turn + 1])) for turn, part in order]
    first = [np.frombuffer(part.ids.first, f"V{ID_BYTES}") for part in parts]
    whole.ids.first = b"".join(first[part][at].tobytes() for part, at in slices)[: MOST_OF_OUTPUTS * ID_BYTES]
    whole.previews.worst = _previews_in_turns(parts, ends, order)
    for key in {key: None for part in parts for key in part.sums}:
        found = [part.sums.get(key) for part in parts]
        if any(sums is None and part.batches for sums, part in zip(found, parts, strict=True)):
            whole.lost.add(key)
            continue
        sums = whole.sums[key] = SampleSums(next(sums.most for sums in found if sums is not None))
        for name in ("power", "error"):
            joined = np.concatenate([getattr(found[part], name)[at] for part, at in slices])
            setattr(sums, name, joined[: sums.most])
    return whole


def _previews_in_turns(
    parts: Sequence[Samples], ends: Sequence[npt.NDArray[np.int_]], order: Sequence[tuple[int, int]]
) -> list[Ranked]:
    """The same samples by their place in the whole."""
    sizes = [parts[part].batches[turn] for turn, part in order]
    starts = dict(zip(order, np.cumsum([0, *sizes]).tolist(), strict=False))
    found = []
    for part, own in enumerate(parts):
        for share, preview in own.previews.worst:
            turn = int(np.searchsorted(ends[part], preview.sample, "right")) - 1
            place = starts[turn, part] + preview.sample - int(ends[part][turn])
            found.append((share, replace(preview, sample=place)))
    return ranked(found)
