"""A source of somebody's own is one class and its place in the list."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import inc_tb
from inc_tb.errors import DataError
from inc_tb.records import GraphNode, Trial
from inc_tb.sources import imports
from inc_tb.sources.imported import Imported, ImportedRun
from inc_tb.sources.imports import find_sources
from inc_tb.sources.source import Found, name_of


class Diary:
    """A file that has an accuracy in every line."""

    expected: Sequence[str] = ("a diary (.diary)",)

    def find(self, path: Path) -> Iterator[Found]:
        for file in sorted(path.rglob("*.diary")) if path.is_dir() else [path] * (path.suffix == ".diary"):
            yield Found(file, name_of(file), self)

    def read(self, found: Found, graph: Sequence[GraphNode]) -> Imported:
        numbers = enumerate(found.path.read_text().split(), start=1)
        return Imported(
            found.name, found.path, [ImportedRun(f"day-{n}", Trial(f"day-{n}", float(a))) for n, a in numbers]
        )

    def watched(self, path: Path) -> Sequence[Path]:
        return [path]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(imports, "SOURCES", (*imports.SOURCES, Diary()))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "may.diary").write_text("0.5\n0.75\n")
    return tmp_path / "mine"


def test_it_is_found_read_and_logged(folder: Path, tmp_path: Path) -> None:
    (found,) = inc_tb.import_workspace(folder, tmp_path / "logs")
    assert [run.name for run in found.runs] == ["day-1", "day-2"]
    (there,) = (tmp_path / "logs").glob("*/day-2")
    assert inc_tb.load(there).trial == found.trials[1]


def test_messages_name_it(folder: Path) -> None:
    (folder / "may.diary").unlink()
    with pytest.raises(DataError, match=re.escape("(diagnosis.log, profiling_data.json), or a diary (.diary). Give")):
        find_sources(folder)


def test_one_without_anything_in_it(folder: Path) -> None:
    (folder / "may.diary").write_text("")
    with pytest.raises(
        DataError, match=r"may.diary: holds nothing to import. Expected a workspace of Neural Compressor"
    ):
        inc_tb.import_workspace(folder)


def test_what_is_in_a_folder_of_another_source_is_part_of_that(folder: Path) -> None:
    (folder / "inspect_saved").mkdir()
    assert [found.path for found in find_sources(folder)] == [folder]


def test_anything_that_it_raises_is_told_in_one_line(folder: Path) -> None:
    (folder / "may.diary").write_text("much")
    with pytest.raises(DataError, match=r"may.diary: cannot be imported \(ValueError: .*'much'\); expected what"):
        inc_tb.import_workspace(folder)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("trace.json", "diagnosis.log", "tuning_log.txt", "history.snapshot"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(DataError, match="is neither a file nor a folder"):
            inc_tb.import_workspace(tmp_path / name)
    with pytest.raises(DataError):
        inc_tb.import_workspace(tmp_path)
