"""What rounding each matrix, block and kind of matrix of a language model does to its text.

Every matrix gets a score from one forward and one backward pass; the true divergence is measured of all together, of
every kind and block, and of the matrices with the largest scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from inc_tb.frameworks.language import Border, Language, Matrix, Round, Watched
from inc_tb.frameworks.ops import Batch
from inc_tb.llm.formats import Format, Loss, bell_loss, find_format, loss
from inc_tb.llm.measuring import Batches, Progress, measure_sets, score_matrices
from inc_tb.measure.tokens import Decode

FINALISTS = 10
"""Matrices that are measured alone, and groups that are also left out."""
_BELOW_BELL_DB, _FLUSHED = 3.0, 0.1
_WHAT = "all", "kind", "block", "matrix"
Group = tuple[str, str]
"""One of these, and which."""


@dataclass(frozen=True)
class Effect:
    """Of some matrices, with all others in fp32."""

    name: str
    what: str
    """all, kind, block or matrix."""
    matrices: tuple[str, ...]
    score: float
    """What is expected, in nats a token; of several the sum."""
    kl: float
    """What was measured, in nats a token."""
    interval: tuple[float, float] | None
    same_first: float
    without: float | None = None
    """The divergence of all matrices but these, where that was measured."""


@dataclass(frozen=True)
class Block:
    """What leaves a block with all matrices rounded, and the largest number in it before."""

    block: int
    noise: float
    """Sum of squared errors …"""
    signal: float
    """… of squares …"""
    numbers: int
    """… and numbers."""
    largest: float
    channel: int
    sequence: int
    place: int
    token: str

    @property
    def sqnr_db(self) -> float:
        return 10 * math.log10(self.signal / self.noise) if self.noise and self.signal else math.inf

    @property
    def times(self) -> float:
        """How far the largest stands out: as many times the root of the mean square."""
        return abs(self.largest) / math.sqrt(self.signal / self.numbers) if self.signal else 0.0


@dataclass(frozen=True)
class Scored:
    matrix: Matrix
    score: float
    lost: Loss
    """Of the weights."""


@dataclass(frozen=True)
class Layers:
    format: str
    tokens: int
    sequences: int
    bell: Loss
    """What the format takes from weights of a bell shape."""
    matrices: list[Scored]
    effects: list[Effect]
    """All, kinds, blocks and single matrices, the worst of each first."""
    blocks: list[Block]

    @property
    def everything(self) -> Effect:
        return self.effects[0]

    def of(self, what: str) -> list[Effect]:
        return [effect for effect in self.effects if effect.what == what]

    @property
    def unusual(self) -> list[Scored]:
        """Whose weights lose clearly more than the format takes from a bell."""
        least, most = self.bell.sqnr_db - _BELOW_BELL_DB, 2 * self.bell.flushed + _FLUSHED
        return [m for m in self.matrices if m.lost.sqnr_db < least or m.lost.flushed > most]

    def to_json(self) -> dict[str, Any]:
        matrices = [{**m.matrix._asdict(), "score": m.score, **_plain(m.lost)} for m in self.matrices]
        blocks = [{**asdict(b), "sqnr_db": _finite(b.sqnr_db), "times": b.times} for b in self.blocks]
        return {**asdict(self), "bell": _plain(self.bell), "matrices": matrices, "blocks": blocks}


def measure_layers(
    language: Language,
    batches: Batches,
    format: str = "int4-g128",  # noqa: A002  what people call it
    *,
    finalists: int = FINALISTS,
    decode: Decode | None = None,
    progress: Progress | None = None,
) -> Layers:
    """`batches` gives the same ones whenever it is called: scores come first, then what they single out."""
    chosen = find_format(format)
    rounds: dict[str, Round] = {m.name: chosen.round for m in language.matrices}
    scores = score_matrices(language, batches(), {format: rounds})[format]
    groups = _groups(language.matrices, scores, finalists)
    left_out = _left_out(groups, scores, finalists)
    sets = [dict.fromkeys(members, chosen.round) for members in groups.values()]
    sets += [{name: chosen.round for name in rounds if name not in groups[key]} for key in left_out]
    borders: list[Block] = []

    def see(watched: Watched, batch: Batch, before: int) -> None:
        borders[:] = _joined(borders, [_block(*found, batch, before, decode) for found in _of(watched, rounds)])

    tallies = measure_sets(language, batches(), sets, see, progress)
    without = {key: tally.kl for key, tally in zip(left_out, tallies[len(groups) :], strict=True)}
    effects = [
        Effect(
            name, what, tuple(members), sum(scores.get(m, 0.0) for m in members), tally.kl, tally.interval(),
            tally.same_first, without.get((what, name)),
        )
        for ((what, name), members), tally in zip(groups.items(), tallies, strict=False)
    ]  # fmt: skip
    effects.sort(key=lambda effect: (_WHAT.index(effect.what), -effect.kl))
    scored = [Scored(m, scores.get(m.name, 0.0), _lost(language, m, chosen)) for m in language.matrices]
    all_ = tallies[0]
    return Layers(chosen.name, all_.tokens, all_.sequences, bell_loss(chosen.name), scored, effects, borders)


def _groups(matrices: Sequence[Matrix], scores: Mapping[str, float], finalists: int) -> dict[Group, frozenset[str]]:
    found: dict[Group, set[str]] = {("all", "all"): {m.name for m in matrices}}
    for matrix in matrices:
        found.setdefault(("kind", matrix.kind), set()).add(matrix.name)
    for matrix in matrices:
        found.setdefault(("block", str(matrix.block)), set()).add(matrix.name)
    for name in sorted(scores, key=lambda name: -scores[name])[:finalists]:
        found["matrix", name] = {name}
    return {group: frozenset(members) for group, members in found.items()}


def _left_out(groups: Mapping[Group, frozenset[str]], scores: Mapping[str, float], finalists: int) -> list[Group]:
    """Every kind, and the blocks and matrices of which most is expected."""
    expected = {group: sum(scores.get(name, 0.0) for name in members) for group, members in groups.items()}
    found = [group for group in groups if group[0] == "kind"]
    for what in ("block", "matrix"):
        some = sorted((g for g in groups if g[0] == what), key=lambda group: -expected[group])
        found += some[: math.ceil(finalists / 2)]
    return found if len(groups) > 2 else []


def _of(watched: Watched, rounds: Mapping[str, Round]) -> Iterator[tuple[int, Border]]:
    yield from enumerate(watched.borders(rounds))


def _block(number: int, border: Border, batch: Batch, before: int, decode: Decode | None) -> Block:
    token = int(batch["input_ids"][border.sequence, border.place])
    shown = decode([token]) if decode is not None else f"#{token}"
    return Block(
        number, border.noise, border.signal, border.numbers, border.largest, border.channel, before + border.sequence,
        border.place, shown,
    )  # fmt: skip


def _joined(one: Sequence[Block], other: Sequence[Block]) -> list[Block]:
    """Of two batches: the sums of both, and the place of the larger number."""
    if not one:
        return list(other)
    return [
        replace(
            max(a, b, key=lambda block: abs(block.largest)),
            noise=a.noise + b.noise, signal=a.signal + b.signal, numbers=a.numbers + b.numbers,
        )
        for a, b in zip(one, other, strict=True)
    ]  # fmt: skip


def _lost(language: Language, matrix: Matrix, chosen: Format) -> Loss:
    weight = language.weight(matrix.name)
    return loss(weight, chosen.round(weight))


def _plain(lost: Loss) -> dict[str, float | None]:
    return {"sqnr_db": _finite(lost.sqnr_db), "flushed": lost.flushed}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
