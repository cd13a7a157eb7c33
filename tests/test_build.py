"""What an installation from source brings along."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = {"index.js", "elk-worker.js"}


def build(what: str, source: Path, target: Path, **environment: str) -> Path:
    command = [sys.executable, "-m", "build", f"--{what}", "--outdir", target, source]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = target.iterdir()
    return made


@pytest.mark.slow
def test_an_sdist_carries_the_page_and_needs_no_npm(tmp_path: Path) -> None:
    """The page is built where there is its source, with the node from PyPI: there is none on the PATH."""
    nowhere = {"PATH": str(tmp_path), "npm_config_registry": "http://127.0.0.1:9"}
    checkout = tmp_path / "checkout"  # the page of this one may be in use
    left_out = shutil.ignore_patterns(".*", "node_modules", "static")
    shutil.copytree(ROOT, checkout, ignore=left_out)
    sdist = build("sdist", checkout, tmp_path / "sdist", PATH=str(tmp_path))
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("inc_tb-*")
    assert {path.name for path in (source / "tb_plugin" / "static").iterdir()} >= PAGE
    assert not (source / "tb_plugin" / "frontend").exists()
    assert {path.name for path in (source / "docs").iterdir()} >= {"README.md", "screenshots"}
    wheel = build("wheel", source, tmp_path / "wheel", **nowhere)
    files = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    assert {Path("tb_plugin", "static", name) for name in PAGE} <= files
    assert {
        Path("inc_tb", "measure", "_stats.c"),
        Path("tb_plugin", "plugin.py"),
        Path("inc_tb", "demo_data", "digits.npz"),
    } <= files
