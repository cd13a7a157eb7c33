"""What CONTRIBUTING.md and docs/ say about places in the repository is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACE = re.compile(r"`((?:inc_tb|tb_plugin|tests|benchmarks|examples)/[\w./-]*)`")
MENTIONED = re.compile(
    r"^ {4,}.*?((?:measure|advise|search|tuning|profiling|store|frameworks)/[\w/]+\.py)", re.MULTILINE
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_are_named_are_there(page: Path) -> None:
    missing = [place for place in PLACE.findall(page.read_text()) if not (ROOT / place).exists()]
    assert not missing


def test_the_modules_of_the_walk_are_there() -> None:
    named = MENTIONED.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 10
    assert not [place for place in named if not (ROOT / "inc_tb" / place).exists()]


def test_every_room_is_described() -> None:
    folders = {path.name for path in (ROOT / "inc_tb").iterdir() if (path / "__init__.py").exists()}
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert not {name for name in folders if f"`inc_tb/{name}/`" not in text}
