"""What docs/trackers.md shows of MLflow works as it is written."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.documents.blocks import pages_run_by
from tests.documents.play import play_page

HERE = "tests/trackers/test_documents.py"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow has an environment of its own, with MXNet")
@pytest.mark.parametrize("page", pages_run_by(HERE))
def test_what_a_page_shows_works_as_it_is_written(page: str, tmp_path: Path) -> None:
    play_page(page, HERE, tmp_path)
