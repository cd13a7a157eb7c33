"""Pictures of one op: well-formed SVG with the numbers in it, and the tab in a notebook."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import inc_tb
from inc_tb.errors import UsageError
from inc_tb.measure.histogram import SIDE, edges
from inc_tb.records import ChannelRow, HistogramRow
from inc_tb.show.plots import drawn
from inc_tb.show.svg import Bar, Point, bars, scatter, svg
from inc_tb.show.tab import Tab
from tests.example_run import make_diagnosis

NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> inc_tb.Diagnosis:
    return make_diagnosis(tmp_path_factory.mktemp("models"))


def parts(picture: str, tag: str) -> list[ET.Element]:
    return list(ET.fromstring(picture).iter(NAMESPACE + tag))


def words(picture: str) -> list[str]:
    return [text.text or "" for text in parts(picture, "text")]


def test_all_that_is_known_of_an_op(diagnosis: inc_tb.Diagnosis, tmp_path: Path) -> None:
    plot = diagnosis.plot("/conv1/Conv")
    titles = [word for word in words(plot.svg) if word.startswith("/conv1/Conv ")]
    assert {"/conv1/Conv weight", "/conv1/Conv output"} <= set(titles)
    assert "/conv1/Conv output: ranges of 4 channels, widest first" in titles
    assert "channel 1" in words(plot.svg)  # 100 times as wide as the others
    assert plot.save(tmp_path / "conv1.svg").read_text() == plot._repr_html_()
    assert repr(plot) == "<Plot of /conv1/Conv; .save(path) writes it>"


def test_counts_are_spread_between_the_borders() -> None:
    """8 values in the bin from 1 to 1 + 1/32 and 4 quantized ones in the next; the two buckets are just these."""
    top = 130
    (at,) = [i for i, edge in enumerate(edges(top)) if edge == 1.0]
    assert at > SIDE
    chart = drawn(HistogramRow("op", "output", top, [at, 8], [at + 1, 4], 0, []), 100, 118, 2)
    picture = svg([chart], "op")
    reference, quantized = (path.attrib["d"] for path in parts(picture, "path"))
    # log10(9) is all of the 78 that there are between 22 and 100, log10(5) is 0.7325 of it: 57.1
    assert reference == "M0 100V22H50.0V100H100.0V100Z"
    assert quantized == "M0 100V100H50.0V43H100.0V100Z"
    assert words(picture)[-4:-2] == ["1", "1.06"]  # 1 + 2/32


def test_limits_inside_of_the_picture_are_drawn() -> None:
    (at,) = [i for i, edge in enumerate(edges(130)) if edge == 1.0]
    row = HistogramRow("op", "output", 130, [at, 8, at + 31, 1], [at, 8], 0, [], (-5.0, 1.5))
    assert [
        path.attrib["d"] for path in parts(svg([drawn(row)], "op"), "path") if "stroke-dasharray" in path.attrib
    ] == ["M320.0 22V132"]


def test_what_cannot_be_drawn_says_why(diagnosis: inc_tb.Diagnosis, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"there is no such op; expected the name of one, such as /conv1/Relu, /conv1/Conv"
    ):
        diagnosis.plot("conv1")
    with pytest.raises(UsageError, match=r"plot\('/conv1/Conv'\): no histogram of it is known \(none was logged\)"):
        replace(diagnosis, histograms=[], channels=[]).plot("/conv1/Conv")
    with pytest.raises(UsageError, match=r"expected a name that ends with \.svg, such as a\.svg"):
        diagnosis.plot("/conv1/Conv").save(tmp_path / "a.png")


def test_values_that_are_missing_and_names_that_are_code(diagnosis: inc_tb.Diagnosis) -> None:
    hostile = "<script>&\"'"
    row = ChannelRow(hostile, "output", [None, -1.0], [None, 1.0], [None, 0.0], [None, 1.0], [None, 3.0])
    plot = replace(diagnosis, channels=[row]).plot(hostile)
    assert "<script" not in plot.svg
    assert words(plot.svg)[0] == f"{hostile} output: ranges of 2 channels, widest first"


def test_bars_and_points_have_their_values() -> None:
    picture = svg([bars([Bar("a", [10.0, 5.0], "67%"), Bar("b", [None, 2.5], "33%")], "times")], "times")
    lengths = [path.attrib["d"].partition("h")[2].partition("v")[0] for path in parts(picture, "path")]
    assert lengths == ["220.0", "110.0", "0.0", "55.0"]  # of the 220 between names and shares
    dots = parts(
        svg([scatter([Point(1, 0.5, "a"), Point(3, 1.0, "b", True)], "t", ("1", "3"), level=0.75)], "t"), "circle"
    )
    assert [(dot.attrib["cx"], dot.attrib["cy"], dot.attrib["r"]) for dot in dots] == [
        ("8.0", "128.0", "3.5"), ("472.0", "24.0", "5"),
    ]  # fmt: skip


def test_the_tab_is_a_frame_at_the_run(monkeypatch: pytest.MonkeyPatch, diagnosis: inc_tb.Diagnosis) -> None:
    monkeypatch.delenv("TENSORBOARD_PROXY_URL", raising=False)
    tab = Tab(Path("logs"), "#quantization&p.quantization.run=a%3C", SimpleNamespace(port=6007, pid=12), 500)
    html = tab._repr_html_()
    assert 'new URL("/#quantization&p.quantization.run=a%3C", window.location)' in html
    assert "if (6007) url.port = 6007;" in html
    assert 'height="500"' in html
    assert repr(tab) == "<Tab of logs: http://localhost:6007/#quantization&p.quantization.run=a%3C (process 12)>"
    with pytest.raises(UsageError, match=r"was not logged\. Log it first: with inc_tb"):
        replace(diagnosis, logged=None).show()
