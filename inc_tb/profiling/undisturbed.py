"""Without Python's own cleaning up in the middle of what is timed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cleaned_up() -> Iterator[None]:
    """What is there already is looked through once, and not before each block: frameworks have millions of objects."""
    gc.collect()
    is_ours = not gc.get_freeze_count()
    if is_ours:
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Python does not clean up in the middle of a run."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
