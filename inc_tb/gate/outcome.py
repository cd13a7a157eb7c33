"""What came of a check or a comparison, in the form that a pipeline shows: text, JSON, JUnit, Markdown, annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as Xml

from inc_tb import records
from inc_tb.gate.comparing import Compared, to_json
from inc_tb.gate.limits import Checked
from inc_tb.records import listed, plural, storable_text

_MOST_OPS = 20
_IN_XML = {"\t", "\n", "\r"}


@dataclass
class Point:
    """One thing that holds or does not."""

    name: str
    holds: bool
    text: str


@dataclass
class Outcome:
    title: str
    points: list[Point]
    json: Mapping[str, Any]
    notes: Sequence[str] = ()
    """What the reader should know before believing it."""
    also: Sequence[str] = field(default_factory=list)
    """What else has changed, for better or without being held to anything."""

    @property
    def ok(self) -> bool:
        return all(point.holds for point in self.points)


def of_checks(checks: Sequence[Checked]) -> Outcome:
    points = [Point(f"{one.run}: {one.limit}", not one.failures, _checked(one)) for one in checks]
    failures = [
        {"run": f.run, "op": f.op, "column": f.column, "value": f.value, "limit": str(f.limit)}
        for one in checks
        for f in one.failures
    ]
    runs = listed(dict.fromkeys(one.run for one in checks))
    return Outcome(f"inc-tb check {runs}", points, {"ok": not failures, "failures": failures})


def _checked(one: Checked) -> str:
    of_run = one.values == 1 and (not one.failures or not one.failures[0].op)
    if not one.failures:
        return "holds" if of_run else f"holds for {plural(one.values, 'op')}"
    if of_run:
        return f"is {_figure(one.failures[0].value)}"
    told = listed((f"{f.op} has {_figure(f.value)}" for f in one.failures), _MOST_OPS)
    return f"does not hold for {len(one.failures):,} of {plural(one.values, 'op')}: {told}"


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def of_comparison(found: Compared) -> Outcome:
    points = [Point(f"{one.op or one.what}", False, one.because) for one in found.changes if one.fails]
    if not points:
        how = f"{plural(found.paired, 'sample')} compared one by one" if found.paired else "compared on the whole"
        points = [Point("outputs", True, f"no output got worse by more than chance ({how})")]
    elif found.culprit:
        points[0].text += f". The op that did it: {found.culprit}"
    also = [str(one) for one in found.changes if not one.fails]
    return Outcome(f"inc-tb compare {found.base} {found.new}", points, to_json(found), found.comparable, also)


def as_text(outcome: Outcome) -> str:
    lines = [f"{'ok  ' if point.holds else 'FAIL'} {point.name}: {point.text}" for point in outcome.points]
    lines += [f"also {text}" for text in outcome.also]
    return storable_text("\n".join([*lines, *(f"note {text}" for text in outcome.notes)])) + "\n"


def as_json(outcome: Outcome) -> str:
    return records.to_json(outcome.json).decode() + "\n"


def as_junit(outcome: Outcome) -> str:
    failures = sum(not point.holds for point in outcome.points)
    suite = Xml.Element(
        "testsuite", name=_in_xml(outcome.title), tests=str(len(outcome.points)), failures=str(failures), errors="0"
    )
    for point in outcome.points:
        case = Xml.SubElement(suite, "testcase", classname="inc-tb", name=_in_xml(point.name))
        if not point.holds:
            Xml.SubElement(case, "failure", message=_in_xml(point.text)).text = _in_xml(point.text)
    if outcome.notes or outcome.also:
        Xml.SubElement(suite, "system-out").text = _in_xml("\n".join([*outcome.also, *outcome.notes]))
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return Xml.tostring(root, "unicode", xml_declaration=True) + "\n"


def _in_xml(text: str) -> str:
    """Without the characters that XML has no way to write."""
    return "".join(c if c.isprintable() or c in _IN_XML else "\ufffd" for c in storable_text(text))


def as_markdown(outcome: Outcome) -> str:
    lines = [
        f"### {'✅' if outcome.ok else '❌'} {_in_markdown(outcome.title)}",
        "",
        "| | what | result |",
        "|---|---|---|",
    ]
    lines += [
        f"| {'✅' if point.holds else '❌'} | {_in_markdown(point.name)} | {_in_markdown(point.text)} |"
        for point in outcome.points
    ]
    for title, texts in (("Also changed", outcome.also), ("Not the same in both", outcome.notes)):
        if texts:
            lines += ["", f"**{title}**", "", *(f"* {_in_markdown(text)}" for text in texts)]
    return "\n".join(lines) + "\n"


def _in_markdown(text: str) -> str:
    """Names of ops are the model's, so that nothing in them may end a cell or start a tag."""
    one_line = " ".join(storable_text(text).split())
    for mark in "\\`*_[]<>|#":
        one_line = one_line.replace(mark, f"\\{mark}")
    return one_line


def as_annotations(outcome: Outcome) -> str:
    """Workflow commands of GitHub Actions, which shows them beside the run."""
    lines = [_annotation("notice" if p.holds else "error", f"inc-tb: {p.name}", p.text) for p in outcome.points]
    lines += [_annotation("notice", "inc-tb", text) for text in (*outcome.also, *outcome.notes)]
    return "\n".join(lines) + "\n"


def _annotation(kind: str, title: str, text: str) -> str:
    return f"::{kind} title={_in_property(title)}::{_in_command(text)}"


def _in_command(text: str) -> str:
    return storable_text(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _in_property(text: str) -> str:
    return _in_command(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: Mapping[str, Callable[[Outcome], str]] = {
    "text": as_text, "json": as_json, "junit": as_junit, "markdown": as_markdown, "github": as_annotations,
}  # fmt: skip
