from __future__ import annotations

import shutil

from tests.documents.blocks import ROOT


def prepare() -> None:
    """Runs of some time ago."""
    shutil.copytree(ROOT / "tests" / "golden" / "v2", "nc_workspace")
