"""examples/notebook.ipynb runs from top to bottom, and its cells show what it says.

Without a kernel: what a cell ends with is shown by its `_repr_html_`, as notebooks do.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


def run_cells(notebook: Path) -> list[str]:
    """What each code cell shows at its end; in a process of its own, as a kernel is."""
    names: dict[str, object] = {"__name__": "__main__"}
    shown = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), notebook.name, "exec"), names)
        found = eval(compile(ast.Expression(last.value), notebook.name, "eval"), names) if last is not None else None  # type: ignore[attr-defined]
        show = getattr(found, "_repr_html_", None)
        shown.append(show() if show is not None else "" if found is None else repr(found))
    return shown


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where it runs; TensorBoards that were started there are ended."""
    yield tmp_path
    for info in tmp_path.glob(".tensorboard-info/pid-*.info"):
        os.kill(json.loads(info.read_text())["pid"], signal.SIGTERM)


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_says(place: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place), "TENSORBOARD_PROXY_URL": "/proxy/%PORT%/"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    command = [sys.executable, "-m", "tests.test_notebook", str(NOTEBOOK)]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    setup, card, plot, saved, profile, tab = json.loads(done.stdout.splitlines()[-1])
    assert setup == ""
    assert "outlier channels" in card
    assert "<svg " in card
    assert plot.count("<path ") > 20
    assert "conv1.svg" in saved
    assert "slowest ops in fp32 and int8" in profile
    (info,) = place.glob(".tensorboard-info/pid-*.info")
    port = json.loads(info.read_text())["port"]
    assert f'"/proxy/{port}/#quantization&p.quantization.view=suggestions&p.quantization.run=int8"' in tab

    def runs() -> list[str]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/plugin/quantization/runs") as answer:
            return [run["name"] for run in json.load(answer)["runs"]]

    until(lambda: runs() == ["int8"], runs)


def test_its_outputs_are_not_stored() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(cell.get("outputs", []) == [] and cell.get("execution_count") is None for cell in cells)


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(run_cells(Path(sys.argv[1])))}\n")
