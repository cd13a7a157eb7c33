"""The entry point that TensorBoard imports at every start.

No third-party imports here: an error while a plugin's module is imported stops all of TensorBoard.
"""

from __future__ import annotations

import argparse


class QuantizationLoader:
    """Makes TensorBoard keep every step of the quantization records; by default it keeps 10 random ones."""

    def define_flags(self, parser: argparse.ArgumentParser) -> None:
        """There are none."""

    def fix_flags(self, flags: argparse.Namespace) -> None:
        samples = dict(flags.samples_per_plugin or {})
        samples.setdefault("quantization", 0)
        flags.samples_per_plugin = samples

    def load(self, context: object) -> None:
        """No tab of its own yet; the records are shown by the standard dashboards."""
