"""Makes the helpers beside the tests importable, with assertions that explain themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("contract", "onnx_zoo")
