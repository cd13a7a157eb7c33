"""The file of a report: what is in it, and what it says of what cannot be read."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import pytest

from inc_tb import records
from inc_tb.records import Trial
from tb_plugin.report import Logged, write_report

CODE = b'document.title = "caf\xc3\xa9";'


@pytest.fixture
def static(tmp_path: Path) -> Path:
    (tmp_path / "report.js").write_bytes(CODE)
    (tmp_path / "elk-worker.js").write_bytes(b"onmessage = null;")
    return tmp_path


def logged(name: str, run: str = "trial-001", step: int = 0) -> Logged:
    return Logged(run, "trial", step, 100.0 + step, records.encode_rows("trial", [Trial(name, 0.5)]))


def held(page: bytes) -> tuple[dict, list[bytes]]:
    found = re.search(r'<script type="application/json" id="records">(.*?)</script>', page.decode())
    assert found is not None
    stored = json.loads(found[1])
    book = json.loads(gzip.decompress(base64.b64decode(stored["book"])))
    return book, [base64.b64decode(blob) for blob in stored["blobs"]]


def test_records_are_in_it_as_they_are_stored(static: Path) -> None:
    same = logged("a")
    book, blobs = held(
        write_report([logged("old"), same, same._replace(run="trial-002"), logged("b", step=3)], "", static)
    )
    assert book["runs"] == [
        {"name": "trial-001", "kinds": {"trial": {"steps": [0, 3], "version": 2, "wall_time": 103.0}}},
        {"name": "trial-002", "kinds": {"trial": {"steps": [0], "version": 2, "wall_time": 100.0}}},
    ]
    assert [(r["run"], r["step"], r["rows"], r["blobs"]) for r in book["records"]] == [
        ("trial-001", 0, 1, [0]), ("trial-002", 0, 1, [0]), ("trial-001", 3, 1, [1]),
    ]  # fmt: skip
    assert json.loads(gzip.decompress(blobs[0]))[0]["name"] == "a"  # the one that was logged last at its step
    assert blobs[0] == same.blobs[1]


def test_only_its_own_code_runs(static: Path) -> None:
    page = write_report([logged("</script><script>alert(1)")], "</title><script>alert(1)</script>", static).decode()
    assert "alert(1)</script>" not in page
    assert "<title>&lt;/title&gt;&lt;script&gt;" in page
    # printf 'document.title = "café";' | openssl dgst -sha256 -binary | base64
    assert "script-src 'sha256-ilDUcvtgnBsB2fd/II2v84pBoAG+4dR1q9qQLm9EIIY='" in page
    assert "default-src 'none'" in page


@pytest.mark.parametrize("broken", ["element", "header", "empty", "missing"])
def test_what_cannot_be_read_says_so_in_its_place(static: Path, broken: str) -> None:
    whole = logged("a")
    header, element = whole.blobs
    blobs = {
        "element": [header, element[:-1] + b"?"], "header": [header[:-2] + b"?}", element], "empty": [],
        "missing": [header],
    }[broken]  # fmt: skip
    book, stored = held(write_report([whole._replace(blobs=blobs), logged("b", run="other")], "", static))
    assert "the trial record" in book["records"][0]["error"]
    assert [r.get("blobs") for r in book["records"]] == [None, [0]]
    assert len(stored) == 1


def test_kinds_of_later_versions_are_left_out(static: Path) -> None:
    book, _ = held(write_report([logged("a"), logged("b")._replace(kind="of tomorrow")], "", static))
    assert [r["kind"] for r in book["records"]] == ["trial"]


def test_a_page_that_was_not_built(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"report\.js is not there: the page was not built"):
        write_report([], "", tmp_path)
