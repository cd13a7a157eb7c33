"""Writes the golden run of the current version: python -m tests.golden.make (in the repository's folder).

A golden run is made once, when VERSION of inc_tb.records grows, and then read by every later version. Never
make one again for a version that has been released. A kind of record that comes later has a run of its own in `later`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

import inc_tb
from inc_tb.measure.previews import preview_of
from inc_tb.records import VERSION, ProfileRow, Span, TokenMean, Tokens, TokenText, WorstToken
from tests.example_run import make_diagnosis, make_trial

GOLDEN = Path(__file__).parent


def main() -> None:
    _make(GOLDEN / f"v{VERSION}", _add_all)
    _make(GOLDEN / "later" / "tokens", _add_tokens)
    _make(GOLDEN / "later" / "samples", _add_all)
    _make(GOLDEN / "later" / "previews", _add_previews)


def _make(folder: Path, add: Callable[[inc_tb.SummaryWriter], None]) -> None:
    target = folder / "events.out.tfevents.golden"
    if target.exists():
        return  # kept for ever
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary, "run")
        with inc_tb.SummaryWriter(run) as writer:
            add(writer)
        (written,) = run.glob("*tfevents*")
        target.parent.mkdir(exist_ok=True, parents=True)
        shutil.copyfile(written, target)


def _add_all(writer: inc_tb.SummaryWriter) -> None:
    writer.add_diagnosis(make_diagnosis(writer.logdir), step=3)
    writer.add_trial(make_trial(), step=3)
    rows = [ProfileRow("/conv1/Conv", "Conv", 12.0, 4.0, 1.0, spans=[Span("fp32", 0, 0.0, 12.0)])]
    writer.add_profile(inc_tb.Profile(rows, ProfileRow("")), step=3)


def _add_tokens(writer: inc_tb.SummaryWriter) -> None:
    tokens = Tokens(
        "causal", "head", 6, 2, kl=0.5, same_top1=0.5, same_top5=1.0, nll_reference=1.0, nll_quantized=1.25,
        change_nll=0.25, intervals={"kl": (0.25, 0.75)},
        worst=[WorstToken(0, 1, 2.0, "the cat", " sat", " ran", " sat")],
        by_token=[TokenMean(" cat", 3, 1.5)], by_position=[TokenMean("0", 2, 0.25), TokenMean("1-2", 4, 0.625)],
        texts=[TokenText(0, ["the", " cat", " sat"], [None, 0.25, 2.0])],
    )  # fmt: skip
    writer.add_diagnosis(replace(make_diagnosis(writer.logdir), tokens=tokens), step=3)


def _add_previews(writer: inc_tb.SummaryWriter) -> None:
    shown = [(np.eye(8)[None], 3, "image"), (np.sin(np.arange(4000.0)), 1, "sound"), (np.array("a text"), 0, "text")]
    previews = [found for sample, place, name in shown if (found := preview_of(sample, place, name)) is not None]
    diagnosis = make_diagnosis(writer.logdir)
    writer.add_diagnosis(replace(diagnosis, by_sample=replace(diagnosis.by_sample, previews=previews)), step=3)


if __name__ == "__main__":
    main()
