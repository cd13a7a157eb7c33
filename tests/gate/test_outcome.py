"""What a pipeline is shown: with names that would end a cell, a tag or a command."""

from __future__ import annotations

import json
from xml.etree import ElementTree as Xml

import pytest

from inc_tb.gate.comparing import Changed, Compared
from inc_tb.gate.limits import Checked, Failure, Limit
from inc_tb.gate.outcome import FORMATS, Outcome, of_checks, of_comparison

HOSTILE = "a|b<i>\n::error::*x*`y`%\x00\udcff"
LIMIT = Limit("added_sqnr_db", ">=", 20.0)


@pytest.fixture
def failed() -> Outcome:
    failures = [Failure("run", HOSTILE, "added_sqnr_db", 12.5, LIMIT)]
    return of_checks([Checked("run", LIMIT, 3, failures), Checked("run", Limit("bad", "<=", 0.0), 1, [])])


def test_text(failed: Outcome) -> None:
    first, *rest = FORMATS["text"](failed).split("\n", 1)
    assert first.startswith("FAIL run: added_sqnr_db>=20: does not hold for 1 of 3 ops: a|b<i>")
    assert rest[0].splitlines()[-1] == "ok   run: bad<=0: holds"


def test_json(failed: Outcome) -> None:
    found = json.loads(FORMATS["json"](failed))
    assert found["ok"] is False
    (failure,) = found["failures"]
    assert {**failure, "op": ""} == {
        "run": "run", "op": "", "column": "added_sqnr_db", "value": 12.5, "limit": "added_sqnr_db>=20",
    }  # fmt: skip


def test_junit(failed: Outcome) -> None:
    suite = Xml.fromstring(FORMATS["junit"](failed).encode())[0]
    assert {name: suite.attrib[name] for name in ("name", "tests", "failures", "errors")} == {
        "name": "inc-tb check run", "tests": "2", "failures": "1", "errors": "0",
    }  # fmt: skip
    bad, good = suite.findall("testcase")
    assert bad.attrib["name"] == "run: added_sqnr_db>=20"
    assert "a|b<i>" in bad.find("failure").attrib["message"]  # type: ignore[union-attr]
    assert good.find("failure") is None


def test_markdown(failed: Outcome) -> None:
    text = FORMATS["markdown"](failed)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert table[2].startswith(
        r"| ❌ | run: added\_sqnr\_db\>=20 | does not hold for 1 of 3 ops: a\|b\<i\> ::error::\*x\*"
    )
    assert table[3] == r"| ✅ | run: bad\<=0 | holds |"
    assert text.startswith("### ❌ inc-tb check run\n")


def test_annotations(failed: Outcome) -> None:
    bad, good = FORMATS["github"](failed).splitlines()
    assert bad.startswith("::error title=inc-tb%3A run%3A added_sqnr_db>=20::does not hold for 1 of 3 ops: a|b<i>%0A::")
    assert "%25" in bad
    assert good == "::notice title=inc-tb%3A run%3A bad<=0::holds"


def test_a_comparison() -> None:
    changes = [
        Changed("output_sqnr_db", "fc", 40.0, 20.0, -21.0, -19.0, True, "worse by much"),
        Changed("size_kb", "", 10.0, 12.0, because="size_kb 12 where it was 10"),
    ]
    found = of_comparison(Compared("base", "new", changes, ["the data is not the same"], "conv", 20))
    assert FORMATS["text"](found).splitlines() == [
        "FAIL fc: worse by much. The op that did it: conv", "also size_kb: size_kb 12 where it was 10",
        "note the data is not the same",
    ]  # fmt: skip
    told = json.loads(FORMATS["json"](found))
    assert {name: told[name] for name in ("ok", "base", "new", "culprit", "comparable", "paired")} == {
        "ok": False, "base": "base", "new": "new", "culprit": "conv", "comparable": ["the data is not the same"],
        "paired": 20,
    }  # fmt: skip
    assert told["changes"][0] == {
        "what": "output_sqnr_db", "op": "fc", "base": 40.0, "new": 20.0, "low": -21.0, "high": -19.0, "fails": True,
        "because": "worse by much",
    }  # fmt: skip
    fine = of_comparison(Compared("base", "new", paired=20))
    assert fine.ok
    assert FORMATS["text"](fine) == (
        "ok   outputs: no output got worse by more than chance (20 samples compared one by one)\n"
    )
    assert Xml.fromstring(FORMATS["junit"](found).encode()).findtext(".//system-out") is not None
    assert "**Not the same in both**" in FORMATS["markdown"](found)
