"""The entry point that TensorBoard imports at every start.

Nothing but TensorBoard is imported here: an error while a plugin's module is imported, or a class that is no
TBLoader, stops all of TensorBoard.
"""

from __future__ import annotations

import argparse
from typing import Any

from tensorboard.plugins.base_plugin import TBLoader, TBPlugin


class QuantizationLoader(TBLoader):  # type: ignore[misc]  # TensorBoard has no types
    """Makes TensorBoard keep every step of the quantization records; by default it keeps 10 random ones."""

    def fix_flags(self, flags: argparse.Namespace) -> None:
        """What the user asks for in --samples_per_plugin holds; 0 means all."""
        given = getattr(flags, "samples_per_plugin", None)
        if isinstance(given, dict):  # as TensorBoard parses it; anything else is for TensorBoard to complain about
            flags.samples_per_plugin = {"quantization": 0, **given}

    def load(self, context: Any) -> TBPlugin:
        """What this imports may fail: here, TensorBoard says so and goes on without the tab."""
        from tb_plugin.plugin import QuantizationPlugin

        return QuantizationPlugin(context)
