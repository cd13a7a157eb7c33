"""The boundary of models: whatever a file holds that no reader foresaw is an error of ours, which names the model.

Frameworks say themselves what is wrong wherever they know; this is what is left.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from inc_tb.errors import ModelError, reading
from inc_tb.frameworks.registry import describe


def reading_models(*models: Any) -> AbstractContextManager[None]:
    """Around everything that opens models, asks them, or runs them once they are open (then they need not be given)."""
    told = " and ".join(describe(model) for model in models if model is not None) or "the models"
    what_to_do = "Check the file with its own tool, or export it again."
    return reading(ModelError, told, "damaged, or of a kind that inc-tb does not know", what_to_do)
