"""What a user who only wants to log gets: a light import, and no framework unless used."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from inc_tb.frameworks.registry import frameworks

FRAMEWORKS = ("torch", "tensorflow", "onnx", "onnxruntime", "mxnet", "pandas", "sklearn", "tensorboardX")


HEAVY = ("numpy", "tensorboard", "google", "msgspec", "rich", "click")
MODULES = ("inc_tb", "tb_plugin.loader", "inc_tb.store.writer", "inc_tb.cli")


def run(code: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_importing_loads_no_framework_and_the_package_itself_next_to_nothing() -> None:
    code = "import importlib, json, sys\nfound = {}\n"
    code += f"for name in {MODULES!r}:\n    importlib.import_module(name)\n"
    code += f"    found[name] = [m for m in {FRAMEWORKS + HEAVY!r} if m in sys.modules]\n"
    found = run(code + "print(json.dumps(found))")
    assert found["inc_tb"] == []
    assert {module: [m for m in loaded if m in FRAMEWORKS] for module, loaded in found.items()} == {
        module: [] for module in MODULES
    }


def test_public_names() -> None:
    import inc_tb

    for name in inc_tb.__all__:
        assert getattr(inc_tb, name) is not None
    tools = {tool.name: framework.extra for framework in frameworks() for tool in framework.tools}
    assert set(tools) | set(inc_tb.__all__) == set(dir(inc_tb))
    for name, library in tools.items():
        if importlib.util.find_spec(library) is not None:  # MXNet has an environment of its own
            assert getattr(inc_tb, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        inc_tb.nothing  # noqa: B018


EACH_FIRST = """
import json, sys
found = []
for first in ("import inc_tb.advise.diagnose", "from inc_tb.advise.diagnose import collect", "import inc_tb.cli"):
    exec(first)
    import inc_tb
    found.append(callable(inc_tb.diagnose))
    for name in [m for m in sys.modules if m.partition(".")[0] == "inc_tb"]:
        del sys.modules[name]
print(json.dumps(found))
"""


def test_diagnose_is_the_function_whatever_is_imported_first() -> None:
    assert run(EACH_FIRST) == [True] * 3
