"""`inc-tb log`"""

from __future__ import annotations

import contextlib
import sys

import click
from rich.markup import escape

from inc_tb.commands.places import Place, as_place
from inc_tb.commands.terminal import out, print_json


@click.command()
@click.argument("logged", metavar="LOGDIR|RUN", callback=as_place)
@click.option(
    "--to", "tracker", required=True, metavar="TRACKER",
    help="mlflow or wandb, and perhaps a place: mlflow:http://host:5000, mlflow:sqlite:///mlflow.db, "
    "wandb:team/project; or file.py:function that returns one of yours.",
)  # fmt: skip
@click.option("--project", metavar="NAME", help="MLflow's experiment, or the project of W&B.  [default: the tracker's]")
@click.option("--name", metavar="NAME", help="What the tracker's run is called.  [default: the folder's name]")
@click.option("--no-report", "report", flag_value=False, default=True, help="Leave out the HTML report.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: tracker, runs.")
def log(
    logged: Place, tracker: str, project: str | None, name: str | None, report: bool, as_json: bool
) -> None:  # fmt: skip
    """Log what is in one RUN, or in all runs below LOGDIR, to a tracker: MLflow, Weights & Biases, or one of yours.

    Accuracy and objectives become metrics, settings parameters, the op table a table; the report and the config of the
    first suggestion are artifacts. Each run is one of the tracker's, and of several there is one more for the whole.
    """
    from inc_tb.trackers.log import log_to

    # What a tracker prints is not part of the JSON.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        sent = log_to(tracker, logged, project=project, name=name, report=report)
    if as_json:
        print_json({"tracker": tracker, "runs": [one._asdict() for one in sent]})
        return
    for one in sent:
        told = f"Logged [bold]{escape(one.name)}[/] as {escape(one.id)}: {escape(one.place)}"
        out.print(told, highlight=False, soft_wrap=True)
