"""A framework of somebody else, installed beside inc-tb: its folder is on the path, as pip would leave it there.

`second` is spoilt: what it gives goes from -1.14 to 4.29, and its grid ends at 127/256.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.plugins.base_plugin import TBContext
from werkzeug.test import Client

from tests.tensorboards import python_loader  # first: it silences what the plugin's imports warn about

# isort: split
import inc_tb
from inc_tb.frameworks import Adapter, Framework
from tb_plugin import plugin as plugin_module
from tb_plugin.plugin import QuantizationPlugin
from tests.frameworks.contracts.adapter import AdapterContract
from tests.frameworks.contracts.tiny import STEP, WEIGHTS, X

ROOT, TOY = Path(__file__).parents[2], Path(__file__).with_name("toy_framework")
STEPS = {
    "first": ("dot", ["x"], 1 / 32), "relu": ("relu", ["first"], 1 / 32), "second": ("dot", ["relu"], 1 / 256),
    "side": ("dot", ["relu"], 1 / 16), "sum": ("add", ["second", "side"], 1 / 8),
}  # fmt: skip
"""Name -> function, what it reads, and the step of its grid in the quantized model."""


def write_models(folder: Path) -> tuple[Path, Path]:
    reference, quantized = [], []
    for name, (function, reads, grid) in STEPS.items():
        step: dict[str, Any] = {"name": name, "function": function, "reads": reads}
        rounded: dict[str, Any] = {**step, "grid": grid}
        if name in WEIGHTS:
            step["weights"] = WEIGHTS[name].T.tolist()
            rounded |= {"weights": (np.rint(WEIGHTS[name].T / STEP) * STEP).tolist(), "weight_grid": STEP}
        reference.append(step)
        quantized.append(rounded)
    paths = folder / "fp32.toy", folder / "int8.toy"
    for path, steps in zip(paths, (reference, quantized), strict=True):
        path.write_text(json.dumps(steps))
    return paths


def run(*command: object, cwd: Path, installed: tuple[Path, ...] = (TOY,)) -> subprocess.CompletedProcess[str]:
    """Python, with these folders beside inc-tb."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *installed))), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    write_models(folder)
    np.savez(folder / "data.npz", x=X)
    (folder / "a.py").write_text("def evaluate(model):\n    return 1.0\n")
    return folder


@pytest.fixture(scope="module")
def diagnosed(place: Path) -> subprocess.CompletedProcess[str]:
    return run("-m", "inc_tb.cli", "diagnose", "fp32.toy", "int8.toy", "--data", "data.npz", cwd=place)


def test_its_models_are_diagnosed_and_the_bad_op_comes_first(
    place: Path, diagnosed: subprocess.CompletedProcess[str]
) -> None:
    assert diagnosed.returncode == 0, diagnosed.stderr
    rows = [line.split()[:2] for line in diagnosed.stdout.splitlines() if line.partition(" ")[0] in STEPS]
    assert rows[0] == ["second", "bad"]
    assert "clipped range" in diagnosed.stdout
    assert re.search(r'toy\.quantize\(keep=\[\s+"second",', diagnosed.stdout)


def test_what_it_logs_is_read_back_where_it_is_not_installed(
    place: Path, diagnosed: subprocess.CompletedProcess[str]
) -> None:
    found = inc_tb.load(place / "nc_workspace" / "int8")
    assert found.diagnosis.framework == "toy"
    assert list(found.ops["name"]) == list(STEPS)
    assert list(found.ops["type"]) == [function for function, _, _ in STEPS.values()]
    assert [node.inputs for node in found.diagnosis.graph] == [[], ["first"], ["relu"], ["relu"], ["second", "side"]]
    assert found.suggestions[0].rule == "clipped_range"
    assert found.suggestions[0].ops[0] == "second"
    assert list(found.suggestions[0].recipes) == ["toy", "json"]


@pytest.fixture
def tab(place: Path, diagnosed: subprocess.CompletedProcess[str]) -> Iterator[QuantizationPlugin]:
    with python_loader(place / "nc_workspace") as found:
        yield QuantizationPlugin(TBContext(data_provider=found.provider))


def test_the_tab_has_its_table_and_its_configs(tab: QuantizationPlugin) -> None:
    """Decoded as http_api.md says."""
    decode: dict[str, Any] = {}
    text = Path(plugin_module.__file__).with_name("http_api.md").read_text(encoding="utf-8")
    exec("".join(re.findall(r"```python\n(.+?)```", text, re.DOTALL)), decode)

    def ask(route: str, **query: Any) -> tuple[Any, list[bytes]]:
        reply = Client(tab.get_plugin_apps()[route]).get(route, query_string=query)
        assert reply.status_code == 200, reply.text
        found: tuple[Any, list[bytes]] = decode["read_container"](reply.data)
        return found

    contents, blobs = ask("/columns", run="int8", name=["name", "verdict"])
    values = [decode["read_column"](p["column"], blobs[p["blob"]], p["rows"])[0] for p in contents["parts"]]
    assert dict(zip(*values, strict=True))["second"] == "bad"
    contents, blobs = ask("/record", run="int8", kind="suggestions")
    assert [recipe["tool"] for recipe in contents["parts"][0]["meta"]["recipes"]] == ["toy", "json"]
    assert '"second"' in decode["read_rows"](blobs[0])[0]["recipes"]["toy"]


@pytest.mark.parametrize(
    ("form", "wanted"),
    [("toy", 'toy.quantize(keep=[\n    "side"\n])\n'), ("json", '{"fp32": [\n    "side"\n]}\n')],
)
def test_its_configs_are_written(
    place: Path, diagnosed: subprocess.CompletedProcess[str], form: str, wanted: str
) -> None:
    done = run("-m", "inc_tb.cli", "suggest", "nc_workspace/int8", "--format", form, "--op", "side", cwd=place)
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr


def test_where_it_is_not_installed_a_list_of_names_is_left(
    place: Path, diagnosed: subprocess.CompletedProcess[str]
) -> None:
    asked = "-m", "inc_tb.cli", "suggest", "nc_workspace/int8", "--op", "side"
    assert run(*asked, cwd=place, installed=()).stdout == '{"fp32": [\n    "side"\n]}\n'
    refused = run(*asked, "--format", "toy", cwd=place, installed=())
    assert refused.returncode == 2
    assert refused.stderr == "inc-tb: format 'toy' is not among those for this run; expected one of json.\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("tune fp32.toy --data data.npz --eval a.py:evaluate --logdir tuned", "be quantized without a quantizer of"),
        ("diagnose fp32.toy int8.toy --data data.npz --logdir probed --probe 5", "be probed; its package has no"),
        ("diagnose fp32.toy int8.toy --data data.npz --logdir timed --profile 5", "be timed; its package has no"),
        ("profile fp32.toy --data data.npz --logdir timed", "be timed; its package has no"),
    ],
    ids=["tune", "probe", "diagnose with times", "profile"],
)  # fmt: skip
def test_what_it_cannot_do_is_one_line_before_anything_is_done(place: Path, command: str, said: str) -> None:
    done = run("-m", "inc_tb.cli", *command.split(), cwd=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"inc-tb: Toy models cannot {said}")
    assert done.stderr.count("\n") == 1
    assert not {"tuned", "probed", "timed"} & {path.name for path in place.iterdir()}


def test_it_is_asked_before_the_others(tmp_path: Path) -> None:
    """Who brings a framework may know better whose a model is."""
    code = "from inc_tb.frameworks.registry import frameworks; print(*(f.name for f in frameworks()))"
    assert run("-c", code, cwd=tmp_path).stdout.split()[0] == "toy"


def test_one_that_cannot_be_loaded_is_told_and_the_others_go_on(
    place: Path, diagnosed: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    modules = {"broken": "import nothing_of_this_name\n", "other": "FRAMEWORK = 3\n"}
    for name, code in modules.items():
        about = tmp_path / f"{name}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[inc_tb.frameworks]\n{name} = {name}:FRAMEWORK\n")
        (tmp_path / f"{name}.py").write_text(code)
    asked = "-m", "inc_tb.cli", "diagnose", "fp32.toy", "int8.toy", "--data", "data.npz", "--run", "again"
    done = run(*asked, cwd=place, installed=(tmp_path, TOY))
    assert done.returncode == 0
    assert "the framework broken:FRAMEWORK cannot be loaded: No module named 'nothing_of_this_name'" in done.stderr
    assert "the framework other:FRAMEWORK cannot be loaded: a builtins.int is no inc_tb.Framework" in done.stderr
    assert "2 of 5 ops: second, sum" in done.stdout


# The contracts hold for it, too


@pytest.fixture(scope="module")
def toy() -> Iterator[Framework]:
    sys.path.insert(0, str(TOY))
    try:
        import toy_framework

        yield toy_framework.FRAMEWORK
    finally:
        sys.path.remove(str(TOY))


class TestToy(AdapterContract):
    @pytest.fixture
    def adapter(self, toy: Framework, tmp_path: Path) -> Adapter:
        return toy.open_pair(*write_models(tmp_path), memory_budget=1 << 30)

    @pytest.fixture
    def batch(self) -> dict[str, Any]:
        return {"x": X}

    @pytest.fixture
    def expected_ops(self) -> list[str]:
        return list(STEPS)
