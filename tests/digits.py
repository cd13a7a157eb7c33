"""Models with a known culprit, and the digits that they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"


def digits(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Handwritten digits as the models in tests/data want them."""
    from sklearn.datasets import load_digits

    return load_digits().images[:count, None].astype(np.float32) / 16
