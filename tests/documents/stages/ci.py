from __future__ import annotations

import sys

from tests.documents.blocks import ROOT


def prepare() -> None:
    """A healthy network, as the example's build makes it."""
    sys.path.insert(0, str(ROOT / "examples" / "ci_gate"))
    from quantize import main

    main()
