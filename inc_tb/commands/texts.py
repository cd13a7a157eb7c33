"""The options of commands that run a language model over a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from inc_tb.data import Data
from inc_tb.errors import DataError
from inc_tb.frameworks.language import Language
from inc_tb.frameworks.models import open_language
from inc_tb.frameworks.ops import Batch
from inc_tb.frameworks.registry import framework_of
from inc_tb.texts import LENGTH, open_text, open_tokenizer

_TOKENS_AT_ONCE = 512


def with_text(command: Callable[..., Any]) -> Callable[..., Any]:
    """--text and what belongs to it."""
    for option in (
        click.option(
            "--samples", default=8, show_default=True, type=click.IntRange(1), metavar="N",
            help="Use the first N sequences.",
        ),
        click.option(
            "--tokenizer", metavar="PLACE",
            help="Makes tokens of text: a folder of transformers or a .gguf file.  [default: MODEL's]",
        ),
        click.option(
            "--length", default=LENGTH, show_default=True, type=click.IntRange(2), help="Tokens of a sequence."
        ),
        click.option(
            "--text", required=True, type=click.Path(path_type=Path), metavar="FILE",
            help="A text file, cut into sequences of tokens.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


class Text:
    """What these options say."""

    def __init__(self, model: str, text: Path, length: int, tokenizer: str | None, samples: int) -> None:
        self._tokenizer = open_tokenizer(tokenizer or model)
        self._text, self._length, self._samples = text, length, samples
        self._data: Data | None = None

    def open(self, model: Any) -> Language:
        framework_of(model).require("open_language")
        language = open_language(model)
        at_once = max(1, _TOKENS_AT_ONCE // self._length)
        opened = open_text(self._text, self._tokenizer, language.inputs, self._length, at_once)
        self._data = opened.first(self._samples)
        return language

    def batches(self) -> Iterable[Batch]:
        """The same ones whenever it is called."""
        assert self._data is not None
        return self._data

    def halves(self) -> tuple[Callable[[], Iterable[Batch]], Callable[[], Iterable[Batch]]]:
        """Other sequences to choose by than to measure on."""
        rows = np.concatenate([batch["input_ids"] for batch in self.batches()])
        if len(rows) < 2:
            raise DataError(
                f"{self._text}: gives {len(rows)} sequence of {self._length} tokens; expected two, to choose by one "
                "and to measure on the other. Give a longer text, more --samples, or a smaller --length."
            )
        middle = len(rows) // 2
        return partial(self._part, 0, middle), partial(self._part, middle, len(rows))

    def _part(self, first: int, last: int) -> Iterable[Batch]:
        batches = [{n: np.array(row) for n, row in batch.items()} for batch in self.batches()]
        whole = {name: np.concatenate([batch[name] for batch in batches])[first:last] for name in batches[0]}
        at_once = max(1, _TOKENS_AT_ONCE // self._length)
        for start in range(0, last - first, at_once):
            yield {name: rows[start : start + at_once] for name, rows in whole.items()}

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens))
