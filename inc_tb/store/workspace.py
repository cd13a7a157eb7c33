"""What scripts expect of a workspace of Neural Compressor, in every run folder.

Its documents take the newest folder of nc_workspace, and read activations_table.csv and weights_table.csv there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from inc_tb.errors import writing
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.measure.tables import TABLES, is_ours, write_table


def put_tables(folder: Path, diagnosis: Diagnosis | None) -> None:
    """Both tables, except where Neural Compressor's own are; without a diagnosis the titles, unless there are more."""
    with writing(folder):
        for table in TABLES:
            path = folder / table.file
            is_free = not path.exists()
            if is_free or (diagnosis is not None and is_ours(path)):
                write_table(table, folder, diagnosis, few=True)


def put_tables_above(run: Path, logdir: Path, diagnosis: Diagnosis | None) -> None:
    """Of a run further below into the folder right below the logdir, which is all that such a script looks at."""
    parts = run.relative_to(logdir).parts
    if len(parts) > 1:
        put_tables(logdir / parts[0], diagnosis)
        make_newest(logdir / parts[0])


def alone(diagnosis: Diagnosis) -> Diagnosis:
    """What it tells of the reference, which is compared with nothing."""
    known = {f"{side}_{name}" for side in "aw" for name in ("min", "max", "mean", "std", "var", "range")}
    told = {column for table in TABLES for column in (*table.theirs.values(), *table.few)}
    lost = [c for c in diagnosis.ops.columns if c.name in told - known - {"name", "type"}]
    blank = {c.name: ["" if c.type == "text" else "this is the reference"] * diagnosis.ops.count for c in lost}
    return Diagnosis(diagnosis.ops.replaced(blank))


def make_newest(folder: Path) -> None:
    """Of those beside it. Files that come and go change a folder's time, too, but on a coarser clock."""
    if folder.is_dir():
        now = time.time_ns()
        os.utime(folder, ns=(now, now))
