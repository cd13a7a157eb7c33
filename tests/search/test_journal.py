from __future__ import annotations

from pathlib import Path

import pytest

from inc_tb.errors import DataError
from inc_tb.search.journal import Journal

LINES = [{"on": [1, 2], "errors": [0.5, 1e-9]}, {"on": [], "note": "\u00fc\n"}, {"on": [3]}]


def filled(path: Path) -> Journal:
    journal = Journal(path)
    for line in LINES:
        journal.add(line)
    return journal


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "found.jsonl"
    journal = filled(path)
    assert (list(journal), len(journal)) == (LINES, 3)
    assert list(Journal(path)) == LINES
    assert path.read_bytes().count(b"\n") == 3


def test_a_file_that_is_not_there_is_an_empty_journal_and_stays_away(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    assert list(Journal(path)) == []
    assert not path.exists()


def test_a_line_is_on_disk_when_add_returns(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    journal = Journal(path)
    for count, line in enumerate(LINES, start=1):
        journal.add(line)
        assert len(Journal(path)) == count


def test_a_file_cut_anywhere_keeps_every_whole_line_and_goes_on(tmp_path: Path) -> None:
    """A kill can happen at any byte; what is added afterwards must not be glued to the torn line."""
    whole = tmp_path / "whole.jsonl"
    filled(whole)
    data = whole.read_bytes()
    for size in range(len(data) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(data[:size])
        complete = data[:size].count(b"\n")
        journal = Journal(path)
        assert list(journal) == LINES[:complete]
        journal.add({"on": [9]})
        assert list(Journal(path)) == [*LINES[:complete], {"on": [9]}]


def test_cleared_it_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    journal = filled(path)
    journal.clear()
    assert (list(journal), path.exists()) == ([], False)
    journal.clear()
    journal.add({"on": [1]})
    assert list(Journal(path)) == [{"on": [1]}]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    path.write_bytes(b'{"on": []}\nnonsense\n{"on": [1]}\n')
    with pytest.raises(DataError, match=r"line 2 is damaged.*Start anew with another") as error:
        Journal(path)
    assert str(path) in str(error.value)
    assert len(str(error.value).splitlines()) == 1
