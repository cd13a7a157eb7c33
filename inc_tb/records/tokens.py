"""What quantizing a language model does to the tokens that it would write."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from inc_tb.records.text import short_repr

_LARGEST = 700
"""Of what has an exponential."""


class WorstToken(msgspec.Struct, omit_defaults=True):
    """One place in the data where the two models disagree most about a token."""

    __repr__ = short_repr

    sequence: int
    """Of the data, from 0."""
    position: int
    """In the sequence, of the last token that was read."""
    kl: float
    before: str
    """The end of what was read."""
    reference: str
    """The token that the reference finds most likely there."""
    quantized: str
    actual: str = ""
    """What the data has there; "" at the end of a sequence."""


class TokenMean(msgspec.Struct):
    """The mean divergence of some tokens."""

    __repr__ = short_repr

    what: str
    """The token that was read last, or the positions."""
    count: int
    kl: float


class TokenText(msgspec.Struct):
    """The first tokens of a sequence, and how far the models are apart about each."""

    __repr__ = short_repr

    sequence: int
    words: list[str]
    kl: list[float | None]
    """Null where no model has said anything about a token, as about the first one."""


class Tokens(msgspec.Struct, omit_defaults=True):
    """The verdict on a language model in tokens: means over all that were compared."""

    __repr__ = short_repr

    kind: Literal["causal", "masked", ""]
    """Whether a token is told from those before it, or from both sides; "" where that is not known."""
    op: str
    """Whose result is a score for each token of the vocabulary."""
    count: int
    """Places at which both models have told the distribution of a token."""
    sequences: int
    kl: float
    """Kullback-Leibler divergence of the quantized model's distribution from the reference's, in nats a token."""
    same_top1: float
    """Share of places where both find the same token most likely."""
    same_top5: float
    """Share of places where the reference's first choice is among the quantized model's first five."""
    nll_reference: float | None = None
    """Negative log-likelihood of the next token of the data, in nats a token; of causal models only."""
    nll_quantized: float | None = None
    change_nll: float | None = None
    intervals: dict[str, tuple[float, float]] = {}
    """That hold a mean in 95 of 100 cases, by resampling sequences; none for a single sequence."""
    left_out: int = 0
    """Places at which a score was not a number."""
    worst: list[WorstToken] = []
    by_token: list[TokenMean] = []
    """After which tokens most of the divergence is, of those that were seen several times."""
    by_position: list[TokenMean] = []
    texts: list[TokenText] = []

    def to_json(self) -> dict[str, Any]:
        ratios = {name: getattr(self, name) for name in ("perplexity_reference", "perplexity_quantized")}
        return {**msgspec.to_builtins(self), **ratios}

    @property
    def perplexity_reference(self) -> float | None:
        return _exp(self.nll_reference)

    @property
    def perplexity_quantized(self) -> float | None:
        return _exp(self.nll_quantized)


def _exp(nll: float | None) -> float | None:
    if nll is None:
        return None
    return math.exp(nll) if nll < _LARGEST else math.inf
