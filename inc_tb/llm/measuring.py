"""Scores of all matrices from one backward pass, and true divergences of sets of them; one batch is held at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from inc_tb.errors import DataError
from inc_tb.frameworks.language import Language, Round, Watched
from inc_tb.frameworks.ops import Batch
from inc_tb.llm.tally import Tally

Batches = Callable[[], Iterable[Batch]]
Progress = Callable[[int, int], None]
See = Callable[[Watched, Batch, int], None]
"""A batch, and how many sequences came before it."""


def score_matrices(
    language: Language, batches: Iterable[Batch], formats: Mapping[str, Mapping[str, Round]]
) -> dict[str, dict[str, float]]:
    """Format -> matrix -> the divergence that is expected of rounding it alone, in nats a token."""
    sums: dict[str, dict[str, float]] = {format_: dict.fromkeys(rounds, 0.0) for format_, rounds in formats.items()}
    tokens = 0
    given = list(batches)
    for batch, watched in zip(given, language.watch(iter(given)), strict=True):
        tokens += _tokens(batch)
        for format_, effects in watched.effects(formats).items():
            for name, effect in effects.items():
                sums[format_][name] += effect
    if not tokens:
        raise DataError("the text has no tokens; expected at least one sequence. Give a longer one.")
    return {format_: {name: total / tokens for name, total in found.items()} for format_, found in sums.items()}


def measure_sets(
    language: Language,
    batches: Iterable[Batch],
    sets: Sequence[Mapping[str, Round]],
    see: See | None = None,
    progress: Progress | None = None,
) -> list[Tally]:
    """Of each set of rounded matrices, with all others as they are."""
    tallies = [Tally() for _ in sets]
    given, done, before = list(batches), 0, 0
    for batch, watched in zip(given, language.watch(iter(given)), strict=True):
        for tally, rounds in zip(tallies, sets, strict=True):
            tally.add(watched.told(rounds))
            done += 1
            if progress is not None:
                progress(done, len(sets) * len(given))
        if see is not None:
            see(watched, batch, before)
        before += len(batch["input_ids"])
    return tallies


def _tokens(batch: Batch) -> int:
    mask = batch.get("attention_mask")
    return int(np.size(batch["input_ids"]) if mask is None else np.count_nonzero(mask))
