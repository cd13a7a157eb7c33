"""A framework is named in its own package, and nowhere else: what another one brings needs no change here.

Prose may speak of it: comments, docstrings, help texts and messages. Code may not, nor a text that decides something.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import inc_tb
from inc_tb.frameworks.registry import frameworks

ROOT = Path(inc_tb.__file__).parent
NAMES = {
    *(word.lower() for framework in frameworks() for word in (framework.name, framework.title, framework.extra)),
    "gluon", "keras", "onnxruntime", "tflite", "torchao",
}  # fmt: skip
"""With what else belongs to them."""
ABOUT_THEM = (
    *(path for path in sorted((ROOT / "frameworks").iterdir()) if path.is_dir()), ROOT / "integrations",
    ROOT / "sources", ROOT / "demo.py",
)  # fmt: skip
LEAST_WORDS = 4
"""That make a text a sentence."""


def sources() -> list[Path]:
    return [p for p in sorted(ROOT.rglob("*.py")) if not any(p.is_relative_to(place) for place in ABOUT_THEM)]


def words(text: str) -> set[str]:
    """Of an identifier or a text, also inside of it: is_torch, OnnxAdapter, torch.nn, model.onnx."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return {word.lower() for word in re.findall(r"[A-Za-z0-9]+", apart)} | {text.lower()}


def is_prose(text: str) -> bool:
    names = "|".join(NAMES)
    return len(text.split()) >= LEAST_WORDS and not re.search(rf"\b(import|from) ({names})\b|\b({names})\.\w+\(", text)


def named(source: str) -> Iterator[tuple[int, str]]:
    """Line and what stands there, of everything that names a framework without being prose."""
    tree = ast.parse(source)
    documented = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    inside = {id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in n.values}
    for node in ast.walk(tree):
        for identifier in _identifiers(node):
            if words(identifier) & NAMES:
                yield node.lineno, identifier
        text = _text(node)
        if text is not None and id(node) not in documented | inside and words(text) & NAMES and not is_prose(text):
            yield node.lineno, repr(text)


def _identifiers(node: ast.AST) -> list[str]:
    if isinstance(node, ast.alias):
        return [node.name, node.asname or ""]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    found = (getattr(node, field, None) for field in ("id", "attr", "name", "arg"))
    return [name for name in found if isinstance(name, str)]


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_that_is_about_no_framework_names_none(path: Path) -> None:
    assert [f"{path.name}:{line}: {what}" for line, what in named(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "code",
    [
        "import torch", "from onnx import helper", "from inc_tb.frameworks.mxnet import FRAMEWORK",
        "import numpy as keras", 'if framework == "onnx": pass', 'x = {"torch": 1}', "is_torch = 1",
        "class OnnxThing: pass", "def f(tflite): pass", "f(keras=1)",
        "x.tensorflow", 'suffix = ".onnx"', 'f"{name}.onnx"', 'text = "import torch\\nmodel = f(x) + 1"',
        'text = "the line torch.load(path) does so"', 'sys.modules.get("torch")',
    ],
)  # fmt: skip
def test_code_is_found(code: str) -> None:
    assert list(named(code))


@pytest.mark.parametrize(
    "code",
    [
        '"""Of torch."""', "x = 1  # torch", 'raise ValueError("expected a trace of torch.profiler here")',
        'def f():\n    """As onnx does it."""\n    x = 1\n    """Of keras."""', "torchlight = 1",
        'print(f"{x} is for TensorFlow models only")',
    ],
)  # fmt: skip
def test_prose_is_not(code: str) -> None:
    assert not list(named(code))
