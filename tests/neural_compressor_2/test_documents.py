"""The pages that need this environment work as they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.blocks import pages_run_by
from tests.documents.play import play_page

HERE = "tests/neural_compressor_2/test_documents.py"


@pytest.mark.slow
@pytest.mark.parametrize("page", pages_run_by(HERE))
def test_what_a_page_shows_works_as_it_is_written(page: str, tmp_path: Path) -> None:
    play_page(page, HERE, tmp_path)
