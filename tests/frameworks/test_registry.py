"""The frameworks together; each by itself is held to the contracts."""

from __future__ import annotations

import subprocess
import sys

from inc_tb.frameworks.registry import frameworks

LIBRARIES = ("mxnet", "onnx", "onnxruntime", "torch", "tensorflow", "keras", "torchao", "tf_keras")
ASKING = f"""
import sys
from inc_tb.frameworks.formats import Settings
from inc_tb.frameworks.registry import frameworks

for framework in frameworks():
    for model in ("model.onnx", "model.pb", "net-symbol.json", b"bytes", 3, None):
        framework.recognizes(model)
    framework.as_array(3)
    for form in framework.formats:
        form.make(Settings(True, "uint8", "int8"))
    for tool in framework.tools:
        tool.settings({{option.name: option.default for option in tool.options}})
print([name for name in {LIBRARIES} if name in sys.modules])
"""


def test_asking_what_they_are_loads_no_library() -> None:
    done = subprocess.run([sys.executable, "-c", ASKING], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_option_that_tools_share_is_the_same_for_all() -> None:
    """The command line has it once."""
    shared: dict[str, set[tuple[bool, str | bool | None]]] = {}
    for framework in frameworks():
        for tool in framework.tools:
            for option in tool.options:
                shared.setdefault(option.name, set()).add((bool(option.choices), option.default))
    assert {name: forms for name, forms in shared.items() if len(forms) > 1} == {}
