"""Runs the blocks of one page in the current folder.

    python -m tests.documents.play docs/onnx.md tests/test_documents.py

One process for a page: its Python blocks go on where the last one ended, as they do for a reader.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from tests.documents.blocks import ROOT, Block, blocks, commands
from tests.documents.stages import prepare

BEGUN = time.monotonic()


def play_page(page: str, test: str, folder: Path) -> None:
    """In a process of its own, with the commands of this environment on the PATH."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    environment["TF_ENABLE_ONEDNN_OPTS"] = "1"  # not everywhere by default, and int8 kernels need it
    command = [sys.executable, "-m", "tests.documents.play", page, test]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    said = f"{page} does not work as it is written:\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}"
    assert done.returncode == 0, said
    assert not re.search(rf"{re.escape(str(ROOT / 'inc_tb'))}\S+: \w*Warning: ", done.stderr), said


def main(page: str, test: str) -> None:
    prepare(page)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.run_by == test and block.language != "text":
            sys.stdout.write(f"--- {page}:{block.line}, after {time.monotonic() - BEGUN:.1f} s\n")
            sys.stdout.flush()  # others write there, too
            _run(block, names)


def _run(block: Block, names: dict[str, Any]) -> None:
    if block.file:
        Path(block.file).write_text(block.code)
    elif block.language == "python":
        at_its_line = "\n" * (block.line - 1) + block.code
        exec(compile(at_its_line, str(ROOT / block.page), "exec"), names)
    elif block.language == "sh":
        for command in commands(block.code):
            _run_command(command)


def _run_command(command: str) -> None:
    program, *arguments = shlex.split(command, comments=True)
    if program == "tensorboard":
        _serve(arguments)
    elif program == "pip":
        _check_installed(arguments)
    elif program == "make":  # a venv is made and filled; CI does that
        subprocess.run(["make", "--dry-run", "-C", ROOT, *arguments], check=True, stdout=subprocess.DEVNULL)
    else:
        subprocess.run(["bash", "-euo", "pipefail", "-c", command], check=True)


def _serve(arguments: list[str]) -> None:
    """It would run for ever: it answers, and shows a run in the tab."""
    from tests.tensorboards import serve

    with serve(None, *arguments) as server:
        server.wait_for_any_run()


def _check_installed(arguments: list[str]) -> None:
    """This environment has what `pip install` would install."""
    verb, wanted = arguments
    assert verb == "install", arguments
    extra = re.fullmatch(r"\.\[(\w+)\]", wanted)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["optional-dependencies"][extra[1]] if extra else [wanted]:
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate():
            assert needed.specifier.contains(version(needed.name), prereleases=True), text


if __name__ == "__main__":
    main(*sys.argv[1:])
