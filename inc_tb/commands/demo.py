"""`inc-tb demo`"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from inc_tb.commands.terminal import err, invite, out, print_json


@click.command()
@click.option("--logdir", type=click.Path(path_type=Path), default=Path("nc_workspace"), show_default=True)
@click.option("--serve/--no-serve", default=None, help="Start TensorBoard afterwards. [default: when on a terminal]")
@click.option("--json", "as_json", is_flag=True, help="Print the trials as JSON.")
def demo(logdir: Path, serve: bool | None, as_json: bool) -> None:
    """See it find a culprit: a real CNN, three quantizations, under a minute, nothing needed."""
    from inc_tb.demo import run_demo
    from inc_tb.records import Trial

    trials: list[Trial] = run_demo(err if as_json else out, logdir)
    if as_json:
        print_json({"logdir": str(logdir), "trials": trials})
        return
    invite(logdir)
    if sys.stdout.isatty() if serve is None else serve:
        out.print("Starting it; Ctrl-C ends it.")
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1"]
        subprocess.run(command, check=False)
