"""What a reader may copy out of README.md and docs/, and which test runs it.

    ```sh                     commands, as they are pasted
    ```python                 a part of the page's program: blocks of one page share their names
    ```python evaluate.py     a file that the reader writes; also ```yaml cnn.yaml
    ```text                   what was printed

There are no other blocks. tests/test_documents.py runs them, page by page and in order, unless a comment on the line
before the block, or on the first line of the page for all of it, names another test:
<!-- run by tests/test_examples.py -->.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
HERE = "tests/test_documents.py"
_RUN_BY = re.compile(r"<!-- run by (\S+) -->")


class Block(NamedTuple):
    page: str
    line: int
    """Of its first line of code, from 1."""
    language: str
    file: str
    code: str
    run_by: str


def blocks(page: str) -> list[Block]:
    lines = (ROOT / page).read_text().splitlines()
    for_all = _RUN_BY.fullmatch(lines[0])
    found: list[Block] = []
    begun: int | None = None
    for i, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if begun is None:
            begun = i
            continue
        language, _, file = lines[begun].removeprefix("```").partition(" ")
        here = _RUN_BY.fullmatch(lines[begun - 1]) or for_all
        code = "\n".join(lines[begun + 1 : i]) + "\n"
        found.append(Block(page, begun + 2, language, file, code, here[1] if here else HERE))
        begun = None
    assert begun is None, f"{page}:{begun}: a block without an end"
    return found


def commands(code: str) -> list[str]:
    """Of a block in sh, one a line; a line that ends with a backslash goes on."""
    return [line for line in code.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def pages_run_by(test: str) -> list[str]:
    return [page for page in PAGES if any(block.run_by == test and block.language != "text" for block in blocks(page))]


def prose(page: str) -> str:
    """Without its blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
