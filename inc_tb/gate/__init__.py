"""Whether a run is good enough: by limits, or against a run that was. What a pipeline stops at."""
