"""What an installation from source brings along."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = {"index.js", "elk-worker.js", "THIRD_PARTY.txt"}
NOTICE = re.compile(r"^(\S+) [\d.]+ \((\S.*)\)$", re.MULTILINE)
RELEASED = {"SOURCE_DATE_EPOCH": "1700000000"}


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
    sdist = build("sdist", checkout, tmp_path / "sdist", PATH=str(tmp_path), **RELEASED)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("inc_tb-*")
    assert {path.name for path in (source / "tb_plugin" / "static").iterdir()} >= PAGE
    assert not (source / "tb_plugin" / "frontend").exists()
    assert {path.name for path in (source / "docs").iterdir()} >= {"README.md", "screenshots"}
    wheel = build("wheel", source, tmp_path / "wheel", **nowhere, **RELEASED)
    elsewhere = tmp_path / "elsewhere" / "inc_tb"
    shutil.copytree(source, elsewhere, copy_function=shutil.copy)  # with other times
    again = build("wheel", elsewhere, tmp_path / "wheel-again", **nowhere, **RELEASED)
    assert (again.name, again.read_bytes()) == (wheel.name, wheel.read_bytes())
    one, other = (
        build("sdist", at, tmp_path / f"sdist-{at.name}", **nowhere, **RELEASED) for at in (source, elsewhere)
    )
    assert one.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        _names_what_the_page_contains(archive.read("tb_plugin/static/THIRD_PARTY.txt").decode())
    files = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    assert {Path("tb_plugin", "static", name) for name in PAGE} <= files
    assert {
        Path("inc_tb", "measure", "_stats.c"),
        Path("tb_plugin", "plugin.py"),
        Path("inc_tb", "demo_data", "digits.npz"),
    } <= files


def _names_what_the_page_contains(notice: str) -> None:
    """Every package that its own asks for, with its licence and the text of it."""
    wanted = json.loads((ROOT / "tb_plugin" / "frontend" / "package.json").read_text())["dependencies"]
    parts = notice.split("-" * 80)
    named = {found[1]: found[2] for part in parts if (found := NOTICE.search(part))}
    assert set(wanted) - {"esbuild"} <= set(named)
    assert set(named.values()) <= {"MIT", "ISC", "EPL-2.0 OR GPL-3.0-or-later"}
    assert len(named) == len(parts)
    assert all(len(part.strip().splitlines()) > 10 for part in parts)
