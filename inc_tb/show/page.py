"""The Quantization tab in one file, which any browser opens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from inc_tb.store.reader import stored_records


def page_of(folders: Mapping[str, Path], title: str) -> bytes:
    """The page with all records of these runs, by name."""
    from tb_plugin.report import Logged, write_report

    records = (
        Logged(run, tag.partition("/")[2], step, wall_time, blobs)
        for run, folder in folders.items()
        for tag, step, wall_time, blobs in stored_records(folder)
    )
    return write_report(records, title)
