"""These run where MXNet is installed, which wants a numpy of its own: see CONTRIBUTING.md."""

from __future__ import annotations

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("mxnet") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """MXNet's own calls, which the tests make as users do."""
    for item in items:
        if "mxnet" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore:Please import `csr_matrix`:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning"))
