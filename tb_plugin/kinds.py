"""The kinds of records, and how they hold over the steps of a run."""

from __future__ import annotations

from inc_tb import records

KINDS: tuple[records.Kind, ...] = ("ops", *records.ROW_KINDS)
WITH_STEPS: tuple[records.Kind, ...] = ("ops", "trial", "profile")
"""Listed with their steps. The histograms of a large model have a thousand elements, and a step comes with all keys."""
STANDING: frozenset[records.Kind] = frozenset({"histograms", "channels", "graph", "suggestions", "samples", "previews"})
"""What a later step does not write anew still stands: a probe only adds to the table and the suggestions."""
