"""The lines that a command begins with: no more than five, no wider than the terminal, and only what is known."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

import inc_tb
from inc_tb.advise.effects import KeptSet, with_measured_sets
from inc_tb.profiling.profile import Profile
from inc_tb.records import SLOWER, Effect, ProfileRow, Tokens, Trial
from inc_tb.search.comparison import Comparison
from inc_tb.show.verdict import (
    Line,
    effect_text,
    show_verdict,
    trial_text,
    verdict_of_diagnosis,
    verdict_of_profile,
    verdict_of_tuning,
)
from inc_tb.tuning.loop import Tuned
from tests.example_run import make_diagnosis


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Diagnosis:
    return make_diagnosis(tmp_path_factory.mktemp("models"))


def told(lines: list[Line]) -> dict[str, str]:
    assert len(lines) <= 5
    return {line.label: line.text for line in lines}


def test_without_a_probe(diagnosis: inc_tb.Diagnosis) -> None:
    said = told(verdict_of_diagnosis(diagnosis, next_step="go on"))
    last = diagnosis.ops["total_sqnr_db"][6]
    assert said["lost"] == f"{last:.1f} dB signal to noise are left at /fc/Gemm, the last op compared"
    assert said["where"].startswith("4 of 7 ops")
    assert said["why"].startswith("outlier channels: 1 of 4 channels is ")
    assert said["cure"] == "keep them in fp32"
    assert said["next"] == "go on"


def test_what_was_measured_at_the_output_is_said(diagnosis: inc_tb.Diagnosis) -> None:
    gain = Effect("recovers", "less error at the output", 0.995, "share", "measured", "a probe")
    guess = Effect("recovers", "less added noise", 0.5, "share", "estimated", "a guess")
    first = diagnosis.suggestions[0]
    changed = inc_tb.Suggestion(first.ops, first.rule, first.because, {}, first.recipes, rank=1, effects=[guess, gain])
    probed = replace(diagnosis, suggestions=[changed])
    said = told(verdict_of_diagnosis(probed, {"fp32": Comparison(0.0), "real": Comparison(0.25, 0.8)}))
    assert said["lost"] == "error / signal 0.25 at the output; 80.0% of the decisions are the same"
    assert said["cure"] == "keep them in fp32: removes 99.5% of the error"
    assert "next" not in said


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.9996, "removes over 99.9% of the error"), (0.9987, "removes 99.9% of the error"),
        (0.0, "removes none of the error"), (-0.0004, "removes none of the error"), (-0.051, "adds 5.1% to the error"),
    ],
)  # fmt: skip
def test_a_share_of_the_error_is_told_in_one_way(share: float, text: str) -> None:
    """As the reason beside it says it, and never "removes -5.1%"."""
    assert effect_text(Effect("recovers", "less error", share, "share", "measured", "a probe", "error")) == text


def test_what_a_setting_does_is_an_estimate_until_it_is_run(diagnosis: inc_tb.Diagnosis) -> None:
    first = replace_first(diagnosis, recipes={"onnxruntime-per-channel": "per_channel=True"})
    measured = KeptSet(first.suggestions[0].ops, 0.001, 0.985)
    probed = with_measured_sets(first, measured, {1: measured}, measured.units, "measured with them in fp32")
    assert told(verdict_of_diagnosis(probed))["cure"].endswith(", which by estimate removes 98.5% of the error")
    assert not any(effect.basis == "measured" for effect in probed.suggestions[0].effects)


def test_an_estimate_is_cut_with_what_calls_it_so(diagnosis: inc_tb.Diagnosis) -> None:
    guess = Effect("recovers", "less error", 0.582, "share", "estimated", "a probe", "error")
    setting = replace_first(diagnosis, recipes={"onnxruntime-per-channel": "per_channel=True"}, effects=[guess])
    out = io.StringIO()
    show_verdict(Console(file=out, width=60), verdict_of_diagnosis(setting))
    (cure,) = (line for line in out.getvalue().splitlines() if line.startswith("cure"))
    assert cure == "cure   set ONNX Runtime: a scale per channel"


def replace_first(diagnosis: inc_tb.Diagnosis, **changes: Any) -> inc_tb.Diagnosis:
    first, *others = diagnosis.suggestions
    return replace(diagnosis, suggestions=[msgspec.structs.replace(first, **changes), *others])


def test_of_a_language_model_what_a_reader_notices_is_lost(diagnosis: inc_tb.Diagnosis) -> None:
    tokens = Tokens("causal", "/head/MatMul", 1024, 8, 0.01234, 0.875, 0.99)
    said = told(verdict_of_diagnosis(replace(diagnosis, tokens=tokens)))
    assert said["lost"] == "KL divergence 0.0123 nats a token, the same first choice 87.5%"


def test_a_healthy_model_says_so(tmp_path: Path) -> None:
    said = told(verdict_of_diagnosis(make_diagnosis(tmp_path, outlier=1.0)))
    assert list(said) == ["ok"]
    assert said["ok"].startswith("no op adds more error than quantizing usually does; ")


def test_what_only_saves_time_is_no_loss(tmp_path: Path) -> None:
    healthy = make_diagnosis(tmp_path, outlier=1.0)
    saved = Effect("recovers", "less time", 21.34, "µs", "measured", "a profile", "time")
    faster = inc_tb.Suggestion(["/conv1/Conv"], SLOWER, "quantizing made this op slower", {}, rank=1, effects=[saved])
    found = replace(healthy, suggestions=[faster])
    said = told(verdict_of_diagnosis(found))
    assert list(said) == ["ok", "faster"]
    assert said["faster"] == "keep /conv1/Conv in fp32: saves 21.3 µs a run"
    assert found.verdict == healthy.verdict
    assert found.cure is None


def test_where_nothing_could_be_measured(diagnosis: inc_tb.Diagnosis) -> None:
    names = [c.name for c in diagnosis.ops.columns if c.type == "number"]
    empty = diagnosis.ops.replaced({name: ["not dumped"] * diagnosis.ops.count for name in names})
    said = told(verdict_of_diagnosis(replace(diagnosis, ops=empty, suggestions=[])))
    assert said == {"lost": "no op could be measured", "why": "no op could be measured"}


def test_times() -> None:
    rows = [
        ProfileRow("a", "Conv", 10.0, 25.0, differs=True, difference_us=15.0),
        ProfileRow("b", "Conv", 80.0, 20.0, differs=True, difference_us=-60.0),
        ProfileRow("c", "Add", 10.0, 11.0, differs=False, difference_us=1.0),
    ]
    total = ProfileRow("", "", 100.0, 50.0, differs=True, difference_us=-50.0, low_us=-55.0, high_us=-45.0)
    said = told(verdict_of_profile(Profile(rows, total, runs=5, fp32="f", int8="q"), "go on"))
    assert said == {
        "time": "fp32 100 µs, int8 50 µs, int8 is 2.00 times as fast",
        "where": "a 45%, b 36%, c 20% of the time in int8",  # 25, 20 and 11 of 56
        "why": "1 op takes 15 µs longer in the quantized model: a",
        "next": "go on",
    }
    alike = ProfileRow("", "", 100.0, 99.0, differs=False)
    same = told(verdict_of_profile(Profile([], alike, runs=5, fp32="f", int8="q")))
    assert same == {"time": "fp32 100 µs, int8 99 µs, the two cannot be told apart"}


def test_a_tuning(tmp_path: Path) -> None:
    best = Trial("trial-002", 0.95, 0.96, ["/conv1/Conv"], objectives={"size_kb": 10140.0, "latency_ms": 1.25},
                 int8_macs=0.875, baseline_objectives={"size_kb": 40400.0})  # fmt: skip
    found = Tuned(0.96, 0.9504, False, best, tmp_path / "best.onnx", "all trials are used up", [best])
    assert told(verdict_of_tuning(found)) == {
        "missed": "The criterion does not hold: trial-002 has 0.95 (fp32 0.96, wanted 0.9504)",
        "why": "all trials are used up",
        "kept": "Kept in fp32: /conv1/Conv",
        "costs": "size 10.1 MB (fp32 40.4 MB), latency 1.2 ms, 88% of the multiplications in int8",
    }
    (tmp_path / "best.onnx").touch()
    assert told(verdict_of_tuning(replace(found, met=True)))["model"] == str(tmp_path / "best.onnx")


def test_a_trial() -> None:
    assert trial_text(Trial("t", 0.5, 0.75)) == "t: accuracy 0.5000, fp32 0.7500 (drop 0.2500)"
    assert trial_text(Trial("t")) == "t: no accuracy"


@pytest.mark.parametrize("width", [40, 80, None])
def test_a_line_each_in_a_terminal_and_whole_in_a_pipe(width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out = io.StringIO()
    show_verdict(Console(file=out, width=width), [Line("why", "word " * 50 + "[end]\nline two"), Line("next", "go on")])
    lines = out.getvalue().splitlines()
    assert lines[1:] == ["next   go on", ""]
    if width is None:
        assert lines[0] == f"why    {'word ' * 50}[end] line two"
    else:
        assert (len(lines[0]), lines[0][-1]) == (width, "…")


def test_names_give_way_before_what_is_said(diagnosis: inc_tb.Diagnosis) -> None:
    name = "/encoder/layer.8/attention/self/query/MatMul"
    text = f"1 of 4 channels at {name} is up to 900 times the median one; the scale that all share drowns the others"
    out = io.StringIO()
    show_verdict(Console(file=out, width=80), [Line("why", text, [name])])
    told_in_80 = out.getvalue().splitlines()[0]
    assert told_in_80 == "why    1 of 4 channels at /enc…/MatMul is up to 900 times the median one"


def test_numbers_of_a_nan_table_are_no_claim(diagnosis: inc_tb.Diagnosis) -> None:
    """The last op that has a number speaks, not the last op."""
    values = diagnosis.ops["total_sqnr_db"].tolist()
    known = [value if not np.isnan(value) else "lost" for value in values[:-1]]
    table = diagnosis.ops.replaced({"total_sqnr_db": [*known, "lost"]})
    last = max(i for i, value in enumerate(known) if value != "lost")
    said = told(verdict_of_diagnosis(replace(diagnosis, ops=table)))
    assert f"left at {diagnosis.ops['name'][last]}, the last op compared" in said["lost"]
