"""The verdict on a language model in tokens, gathered while both models run.

Nothing is kept but sums by sequence and by token, the worst places, and the first few hundred tokens to show: memory
does not grow with tokens times vocabulary.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from inc_tb.frameworks.ops import Array, Batch, Op, Pair
from inc_tb.records import TokenMean, Tokens, TokenText, WorstToken

Kind = Literal["causal", "masked"]
Decode = Callable[[Sequence[int]], str]
"""Tokens as text."""

_IDS, _MASK = "input_ids", "attention_mask"
_LEAST_VOCABULARY = 16
_CHUNK_BYTES = 8 << 20
_WORST, _SHOWN, _BEFORE = 20, 2048, 12
"""Places that are kept, tokens that are shown with theirs, and tokens before a place."""
_OFTEN, _TOKENS = 3, 20
_RESAMPLES = 1000
_CLEARLY = 0.1
"""Nats a token by which the one must be more likely than the other: of models that are not trained neither is."""
_MEANS = ("kl", "same_top1", "same_top5")


class Tokenizer(Protocol):
    """What of a tokenizer is used."""

    def decode(self, token_ids: Any) -> str: ...


class _Rows(NamedTuple):
    """One value for each place of some sequences."""

    kl: Array
    first: Array
    """The reference's first choice."""
    theirs: Array
    is_among_five: Array
    next_by_reference: Array
    """Log-likelihood of the token that follows …"""
    next_by_quantized: Array
    own: Array
    """That of the token itself, by the reference."""


class TokenWatch:
    """Sees every pair of a diagnosis, and keeps what it needs of those that are scores of tokens."""

    def __init__(self, kind: Kind | None = None, decode: Decode | None = None) -> None:
        """`kind` is told by the data unless it is given; without `decode` tokens are shown by their numbers."""
        self._kind = kind
        self.decode = decode
        self._decode = decode or _numbers
        self._ends: set[str] = set()
        self._ids: Array | None = None
        self._mask: Array | None = None
        self._row = 0
        self._sequences = 0
        self._op = ""
        self._sums: list[npt.NDArray[np.float64]] = []
        """By sequence: places, divergence, same first, among five, followed places, both likelihoods, its own."""
        self._left_out = 0
        self._worst: list[tuple[float, int, WorstToken]] = []
        self._by_token: dict[int, list[float]] = {}
        self._by_position: dict[int, list[float]] = {}
        self._texts: list[TokenText] = []
        self._shown = 0

    def set_ops(self, ops: Sequence[Op]) -> None:
        """Scores are the result of an op that no other reads."""
        read = {name for op in ops for name in op.inputs}
        self._ends = {op.name for op in ops if op.name not in read}

    def of_batch(self, batch: Batch, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """The same pairs, looked at as they pass."""
        ids = batch.get(_IDS)
        self._ids = ids if ids is not None and ids.ndim == 2 and ids.dtype.kind in "iu" and ids.size else None
        self._mask, self._row = batch.get(_MASK), 0
        for pair in pairs:
            if self._ids is not None and self._are_scores(pair):
                self._op = pair.op
                self._see(pair)
            yield pair
        self._sequences += len(ids) if ids is not None and ids.ndim else 0

    def found(self) -> Tokens | None:
        """None where no op has given scores of tokens."""
        if not self._sums:
            return None
        sums = np.array(self._sums)
        places, followed = sums[:, 0].sum(), sums[:, 4].sum()
        if not places:
            return None
        kind = self._kind or _kind_of(sums)
        means = {name: float(sums[:, 1 + i].sum() / places) for i, name in enumerate(_MEANS)}
        nlls = {}
        if kind == "causal" and followed:
            mine, theirs = (-float(sums[:, i].sum() / followed) for i in (5, 6))
            nlls = {"nll_reference": mine, "nll_quantized": theirs, "change_nll": theirs - mine}
        worst = [token for *_, token in sorted(self._worst, key=lambda found: -found[0])]
        return Tokens(
            kind or "", self._op, int(places), len(sums), **means, **nlls, intervals=_intervals(sums, bool(nlls)),
            left_out=self._left_out, worst=worst, by_token=self._means_by_token(),
            by_position=self._means_by_position(), texts=self._texts,
        )  # fmt: skip

    def _are_scores(self, pair: Pair) -> bool:
        """A number for each token of a vocabulary, at each place of the sequences."""
        ids, shape = self._ids, pair.reference.shape
        if ids is None or pair.role != "output" or pair.op not in self._ends or self._op not in ("", pair.op):
            return False
        fits = len(shape) == 3 and shape[1] == ids.shape[1] and self._row + shape[0] <= len(ids)
        return fits and shape == pair.quantized.shape and shape[2] > max(int(ids.max()), _LEAST_VOCABULARY)

    def _see(self, pair: Pair) -> None:
        ids = self._ids
        assert ids is not None
        for mine, theirs in zip(pair.reference, pair.quantized, strict=True):
            own = ids[self._row]
            mask = None if self._mask is None or self._mask.shape != ids.shape else self._mask[self._row] != 0
            self._see_sequence(mine, theirs, own.astype(np.int64), np.ones(len(own), bool) if mask is None else mask)
            self._row += 1

    def _see_sequence(self, mine: Array, theirs: Array, ids: Array, mask: Array) -> None:
        rows = _compared(mine, theirs, ids)
        is_known = mask & np.isfinite(rows.kl)
        self._left_out += int((mask & ~np.isfinite(rows.kl)).sum())
        follows = np.zeros(len(ids), bool)
        follows[:-1] = is_known[:-1] & mask[1:]
        same = (rows.first == rows.theirs)[is_known].sum()
        likelihoods = [values[follows].sum() for values in (rows.next_by_reference, rows.next_by_quantized, rows.own)]
        known = rows.kl[is_known].sum(), same, rows.is_among_five[is_known].sum()
        self._sums.append(np.array([is_known.sum(), *known, follows.sum(), *likelihoods], np.float64))
        self._note_worst(rows, ids, is_known)
        self._note_means(rows, ids, is_known)
        self._note_text(rows, ids, is_known)

    def _note_worst(self, rows: _Rows, ids: Array, is_known: Array) -> None:
        order = np.flatnonzero(is_known)
        for place in order[np.argsort(-rows.kl[order])][:_WORST].tolist():
            kl, number = float(rows.kl[place]), len(self._sums) * (1 << 32) + place
            if len(self._worst) == _WORST and kl <= self._worst[0][0]:
                return
            chosen = ids[max(0, place + 1 - _BEFORE) : place + 1], rows.first[[place]], rows.theirs[[place]]
            before, first, other = (self._decode(tokens.tolist()) for tokens in chosen)
            after = self._decode(ids[place + 1 : place + 2].tolist()) if place + 1 < len(ids) else ""
            token = WorstToken(self._sequences + self._row, place, kl, before, first, other, after)
            (heapq.heappushpop if len(self._worst) == _WORST else heapq.heappush)(self._worst, (kl, number, token))

    def _note_means(self, rows: _Rows, ids: Array, is_known: Array) -> None:
        for place in np.flatnonzero(is_known).tolist():
            kl = float(rows.kl[place])
            for key, known in ((int(ids[place]), self._by_token), (place.bit_length(), self._by_position)):
                sums = known.setdefault(key, [0.0, 0.0])
                sums[0] += 1
                sums[1] += kl

    def _note_text(self, rows: _Rows, ids: Array, is_known: Array) -> None:
        left = _SHOWN - self._shown
        if left <= 0:
            return
        shown = ids[:left].tolist()
        about = rows.kl[: len(shown)].tolist()
        known = is_known[: len(shown)].tolist()
        told = [kl if is_there else None for kl, is_there in zip(about, known, strict=True)]
        if self._kind != "masked":  # what is told at a place is about the next token
            told = [None, *told[:-1]]
        words = [self._decode([token]) for token in shown]
        self._texts.append(TokenText(self._sequences + self._row, words, told))
        self._shown += len(shown)

    def _means_by_token(self) -> list[TokenMean]:
        often = {token: sums for token, sums in self._by_token.items() if sums[0] >= _OFTEN}
        largest = sorted(often, key=lambda token: -often[token][1])[:_TOKENS]
        return [TokenMean(self._decode([t]), int(often[t][0]), often[t][1] / often[t][0]) for t in largest]

    def _means_by_position(self) -> list[TokenMean]:
        """Twice as many in each row."""
        found = []
        for bits, (count, total) in sorted(self._by_position.items()):
            first, last = (1 << bits) >> 1, (1 << bits) - 1
            found.append(TokenMean(f"{first}" if first >= last else f"{first}-{last}", int(count), total / count))
        return found


def _compared(mine: Array, theirs: Array, ids: Array) -> _Rows:
    """Place by place, some at a time."""
    at_once = max(1, _CHUNK_BYTES // (8 * mine.shape[1]))
    parts = [
        _part(mine[start : start + at_once], theirs[start : start + at_once], ids[start : start + at_once + 1])
        for start in range(0, len(ids), at_once)
    ]
    return _Rows(*map(np.concatenate, zip(*parts, strict=True)))


def _part(mine: Array, theirs: Array, ids: Array) -> _Rows:
    """`ids` are the tokens at these places, and the one behind them."""
    x, y = mine.astype(np.float64), theirs.astype(np.float64)
    rows = np.arange(len(x))
    first, other = x.argmax(axis=1), y.argmax(axis=1)
    with np.errstate(all="ignore"):
        log_p = x - _log_sum(x)
        log_q = y - _log_sum(y)
        p = np.exp(log_p)
        kl = np.where(p > 0, p * (log_p - log_q), 0).sum(axis=1)
    next_ids = np.concatenate([ids[1:], np.zeros(max(0, len(x) - len(ids) + 1), ids.dtype)])
    is_among_five = (y > y[rows, first][:, None]).sum(axis=1) < 5
    return _Rows(
        np.maximum(kl, 0), first, other, is_among_five, log_p[rows, next_ids], log_q[rows, next_ids],
        log_p[rows, ids[: len(x)]],
    )  # fmt: skip


def _log_sum(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    largest = scores.max(axis=1, keepdims=True)
    return np.asarray(largest + np.log(np.exp(scores - largest).sum(axis=1, keepdims=True)))


def _kind_of(sums: npt.NDArray[np.float64]) -> Kind | None:
    """A model that expects the next token more than the one it has just read tells it from those before."""
    following, own = sums[:, 5].sum(), sums[:, 7].sum()
    if abs(following - own) < _CLEARLY * sums[:, 4].sum():
        return None
    return "causal" if following > own else "masked"


def _intervals(sums: npt.NDArray[np.float64], has_nll: bool) -> dict[str, tuple[float, float]]:
    """Of means over resampled sequences."""
    if len(sums) < 2:
        return {}
    draws = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=_RESAMPLES)
    drawn = draws @ sums
    with np.errstate(all="ignore"):
        found = {name: drawn[:, 1 + i] / drawn[:, 0] for i, name in enumerate(_MEANS)}
        if has_nll:
            mine, theirs = -drawn[:, 5] / drawn[:, 4], -drawn[:, 6] / drawn[:, 4]
            found |= {"nll_reference": mine, "nll_quantized": theirs, "change_nll": theirs - mine}
    return {name: _middle(values) for name, values in found.items() if np.isfinite(values).all()}


def _middle(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _numbers(tokens: Sequence[int]) -> str:
    return " ".join(f"#{token}" for token in tokens)
