"""What results say of themselves in a line, and in a notebook as a card: true, escaped, and never large."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from onnxruntime import InferenceSession
from rich.console import Console

import inc_tb
from inc_tb.advise.configs import recipes_for
from inc_tb.advise.effects import KeptSet, UnitEffect
from inc_tb.errors import UsageError
from inc_tb.records import OpTable
from inc_tb.search.comparison import Comparison
from inc_tb.show.diagnoses import show_diagnosis
from inc_tb.shown import Shown
from inc_tb.tuning.attempt import Attempt
from tests.digits import DATA, digits
from tests.made_runs import make_diagnosis, make_profile

HARD, CLEAN = DATA / "hard.onnx", DATA / "clean.onnx"
HOSTILE = "<script>alert('x')</script>&\"\n\ud800\x00" + "x" * 5000
_LINE, _CARD = 700, 12_000
_VOID = {"br", "hr", "img"}
_DRAWN = {"svg", "g", "path", "text", "circle", "title"}
"""Of charts."""


class Card(HTMLParser):
    """Reads what a notebook would show; raises where a tag is left open or closes another one."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open += [] if tag in _VOID else [tag]
        named = dict(attrs)
        if tag not in _DRAWN:
            assert set(named) <= {"style", "href", "target", "rel"}
        assert not any(name.startswith("on") for name in named)
        self.links += [named["href"] or ""] if "href" in named else []

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if "pre" in self._open else f" {' '.join(data.split())} "


def card(result: Any, most: int = _CARD) -> Card:
    """As it is shown, with what holds of every one of them."""
    html = result._repr_html_()
    assert len(html.encode()) < most
    found = Card(html)
    assert set(found.tags) - _DRAWN <= set(
        "div strong em span code pre a table thead tbody tr th td details summary".split()
    )
    assert "url(" not in html
    assert all(link.startswith("http://localhost:6006/#quantization") for link in found.links)
    line = repr(result)
    assert "\n" not in line
    assert len(line) < _LINE
    return found


def hostile(diagnosis: inc_tb.Diagnosis) -> inc_tb.Diagnosis:
    """With names that are code, long and no UTF-8."""
    count = diagnosis.ops.count
    texts = {c.name: [HOSTILE] * count for c in diagnosis.ops.columns if c.type == "text" and c.name != "verdict"}
    suggestion = msgspec.structs.replace(
        diagnosis.suggestions[0], ops=[f"{HOSTILE}{i}" for i in range(count)], because=HOSTILE, rule=HOSTILE,
        recipes={HOSTILE: HOSTILE * 50},
    )  # fmt: skip
    return replace(
        diagnosis, ops=diagnosis.ops.replaced(texts), suggestions=[suggestion] * 50, reference=HOSTILE,
        quantized=HOSTILE, notes=[HOSTILE] * 50, logged=Path("nc_workspace", HOSTILE.replace("/", "")),
    )  # fmt: skip


@pytest.fixture(scope="module")
def many() -> inc_tb.Diagnosis:
    return make_diagnosis(5000, detail=1)


@pytest.fixture
def found(quantized: Callable[..., Path]) -> inc_tb.Diagnosis:
    return inc_tb.diagnose(HARD, quantized("hard"), digits(16))


def test_cards_have_a_chart(found: inc_tb.Diagnosis, quantized: Callable[..., Path]) -> None:
    worst = str(found.ops["name"][found.worst(1, sort=found.ranked_by or "")[0]])
    assert card(found).tags.count("svg") == 1
    assert f"{worst} output" in card(found).text
    assert card(replace(found, histograms=[])).tags.count("svg") == 0
    times = make_profile(make_diagnosis(20).graph)
    assert card(times).tags.count("svg") == 1


def test_a_diagnosis_shows_the_verdict_the_worst_op_and_the_first_cure(found: inc_tb.Diagnosis) -> None:
    first, worst = found.suggestions[0], str(found.ops["name"][found.worst(1)[0]])
    figure = f"{found.ops['added_sqnr_db'][found.worst(1)[0]]:.1f} dB"
    shown = card(found)
    for part in ("outlier channels", first.because, worst, figure, first.recipe, ", ".join(first.ops), "17 ops"):
        assert part in shown.text
    assert "SummaryWriter" in shown.text  # nothing is known of a log
    assert shown.links == []
    line = repr(found)
    assert all(part in line for part in ("17 ops, 16 samples", "outlier channels", worst, figure, HARD.name))


def test_a_setting_is_offered_instead_of_fp32(found: inc_tb.Diagnosis) -> None:
    assert "Keep in fp32: " in card(found).text
    tool = next(f.recipe.tool for f in recipes_for(found.framework, found.ops) if not f.recipe.item)
    first = msgspec.structs.replace(found.suggestions[0], recipes={tool: "per_channel=True"})
    text = card(replace(found, suggestions=[first])).text
    assert "Instead of keeping in fp32: " in text
    assert "Keep in fp32" not in text


def test_a_healthy_model_is_said_to_be_healthy(quantized: Callable[..., Path]) -> None:
    found = inc_tb.diagnose(CLEAN, quantized("clean"), digits(16))
    for text in (card(found).text.lower(), repr(found)):
        assert "no op adds more error than quantizing usually does; worst op" in text
    assert "suggestion" not in card(found).text


def test_without_a_suggestion_ops_to_be_watched_are_still_told(quantized: Callable[..., Path]) -> None:
    found = inc_tb.diagnose(CLEAN, quantized("clean"), digits(16))
    verdicts = ["watch", "watch", *["ok"] * (found.ops.count - 2)]
    unsure = replace(found, ops=found.ops.replaced({"verdict": verdicts}))
    printed = io.StringIO()
    show_diagnosis(Console(file=printed, width=200), unsure)
    for text in (repr(unsure), card(unsure).text, printed.getvalue()):
        assert "2 ops add more error than usual" in text
        assert "no op adds" not in text


def test_what_was_not_measured_is_not_called_healthy(quantized: Callable[..., Path]) -> None:
    weights = inc_tb.diagnose(CLEAN, quantized("clean"), np.full((2, 1, 8, 8), np.nan, np.float32))
    assert "only weights could be measured" in repr(weights)
    numbers = [c.name for c in weights.ops.columns if c.type == "number"]
    nothing = replace(weights, ops=weights.ops.replaced(dict.fromkeys(numbers, ["not measured"] * weights.ops.count)))
    assert "no op could be measured" in repr(nothing)
    assert "No op could be measured; /conv1/Conv: not measured." in re.sub(" +", " ", card(nothing).text)
    for shown in (weights, nothing):
        assert "usually" not in repr(shown) + card(shown).text


def test_no_model_is_too_large_for_a_card(many: inc_tb.Diagnosis) -> None:
    kept = list(map(str, many.ops["name"]))
    suggestions = [msgspec.structs.replace(s, ops=kept, recipes={"json": repr(kept)}) for s in many.suggestions]
    large = replace(many, suggestions=suggestions, notes=["a note"] * 1000)
    text = card(large).text
    assert "5,000 ops" in text
    assert "and 4996 more" in text
    assert "all of it is print(d.cure.recipe)" in text
    assert "997 more notes" in text


def test_hostile_names_stay_text(many: inc_tb.Diagnosis) -> None:
    profile = make_profile(many.graph[:50])
    for row in profile.rows:
        row.op = row.type = HOSTILE
        row.ops = [HOSTILE]
    profile.fp32 = profile.int8 = HOSTILE
    profile.notes, profile.logged = [HOSTILE] * 9, Path("x", HOSTILE.replace("/", ""))
    diagnosis = hostile(make_diagnosis(30))
    trial = inc_tb.Trial(HOSTILE, 0.5, 0.6, [HOSTILE] * 99, {HOSTILE: HOSTILE}, notes=[HOSTILE])
    probe = inc_tb.Probe(
        diagnosis, [UnitEffect(HOSTILE, [HOSTILE], 1, 1, 1)], {HOSTILE: Comparison(1.0)}, KeptSet([HOSTILE] * 9, 0, 1)
    )
    tuned = inc_tb.Tuned(0.6, 0.5, True, trial, Path(HOSTILE), HOSTILE, [trial] * 99, recipe=HOSTILE)
    run = inc_tb.Run(HOSTILE, {0: diagnosis}, {0: trial}, {0: profile})
    for result in (diagnosis, probe, profile, tuned, run):
        shown = card(result, 2 * _CARD)
        assert "<script>" in shown.text
        assert "script" not in shown.tags


def test_a_card_says_where_it_is_logged(found: inc_tb.Diagnosis, tmp_path: Path) -> None:
    folder = tmp_path / "my logs" / "trial 1"
    with inc_tb.SummaryWriter(folder) as writer:
        writer.add_diagnosis(found)
    for result in (found, inc_tb.load(folder).diagnosis, inc_tb.load(folder)):
        shown = card(result)
        assert f"tensorboard --logdir '{tmp_path / 'my logs'}'" in shown.text
        (link,) = shown.links
        assert link.endswith("#quantization&p.quantization.view=suggestions&p.quantization.run=trial%201")


def test_a_probe(quantized: Callable[..., Path], tmp_path: Path) -> None:
    probe = inc_tb.probe(HARD, quantized("hard"), digits(16), budget_s=5, logdir=tmp_path / "run")
    text = card(probe).text
    assert f"{probe.comparison['real'].error:.3g}" in text
    assert probe.explaining is not None
    for part in (", ".join(probe.explaining.units), "sensitivity", probe.diagnosis.suggestions[0].because, "Measured:"):
        assert part in text
    assert f"tensorboard --logdir {tmp_path}" in text
    assert "10 units" in repr(probe)


def test_a_profile(many: inc_tb.Diagnosis) -> None:
    profile = make_profile(many.graph)
    slowest = profile.by_time()[0][0]
    shown = card(profile)
    for part in (slowest.op, "30,000.0", "16,000.0", "times as fast", "add_profile"):
        assert part in shown.text
    assert "5 rows" not in shown.text
    assert "fp32 30,000.0 µs, int8 16,000.0 µs" in repr(profile)


def test_a_tuning_and_its_runs(tmp_path: Path) -> None:
    def evaluate(model: Path) -> float:
        outputs = InferenceSession(str(model)).run(None, {"input": images})[0]
        return float((outputs.argmax(axis=1) == labels).mean())

    images = digits(64)
    labels = InferenceSession(str(HARD)).run(None, {"input": images})[0].argmax(axis=1)
    tuned = inc_tb.tune(HARD, images, evaluate, logdir=tmp_path, probe_s=3, objectives=(), max_trials=4)
    shown = card(tuned)
    holds = "criterion holds" if tuned.met else "criterion does not hold"
    for text in (shown.text, repr(tuned)):
        assert holds in text
        assert tuned.best.name in text
    assert tuned.recipe in shown.text
    assert ", ".join(tuned.best.fallback[:4]) in shown.text
    (link,) = shown.links
    assert link.endswith("view=trials")
    run = inc_tb.load(tmp_path / tuned.best.name)
    text = card(run).text
    assert f"accuracy  {tuned.best.accuracy:.6g}".replace("  ", " ") in text
    assert f"{run.ops.count} ops" in text
    assert "1 trial" in repr(run)


def test_a_run_with_nothing_in_it_says_so() -> None:
    assert "no diagnosis, no trial and no profile" in card(inc_tb.Run("nc_workspace/x")).text


def test_every_result_has_a_card() -> None:
    from importlib import import_module

    results = {inc_tb.Diagnosis, inc_tb.Probe, inc_tb.Profile, inc_tb.Run, inc_tb.Tuned}
    assert {c for c in Shown.__subclasses__() if c.__module__.startswith("inc_tb")} == results
    for result in results:
        module, _, function = result._card.partition(":")
        assert callable(getattr(import_module(f"inc_tb.show.cards.{module}"), function))


def test_whatever_a_result_is_made_of_is_shown_in_a_line(many: inc_tb.Diagnosis) -> None:
    names = list(map(str, many.ops["name"]))
    profile = make_profile(many.graph[:20])
    profile.rows[0].spans *= 5000
    parts: list[Any] = [
        many.ops, many.histograms[0], many.channels[0], many.graph[1], profile.rows[0], many.suggestions[0].effects[0],
        msgspec.structs.replace(many.suggestions[0], ops=names, recipes={f"tool{i}": repr(names) for i in range(20)}),
        inc_tb.Trial("trial-001", 0.5, 0.6, names, dict.fromkeys(names, names), notes=names), *many.ops.columns,
        UnitEffect(names[0], names, 1.0, 0.5, 1.5), KeptSet(names, 0.0, 1.0), Attempt({"a": names}, tuple(names)),
    ]  # fmt: skip
    for part in parts:
        line = repr(part)
        assert len(line) < 1500, line
        assert "\n" not in line
        assert type(part).__name__ in line
    assert isinstance(many.ops, OpTable)
    assert "5,000 ops" in repr(many.ops)


def test_a_table_for_pandas_without_pandas(found: inc_tb.Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"needs pandas, which is not installed.*pip install pandas\."):
        found.to_pandas()


def test_an_integration_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "inc_tb.integrations.keras", raising=False)
    monkeypatch.delitem(vars(inc_tb.integrations), "keras", raising=False)  # asking for it would import it
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(UsageError, match=r"integrations\.keras needs keras, which is not installed"):
        inc_tb.integrations.keras  # noqa: B018
