"""`inc-tb apply`"""

from __future__ import annotations

from pathlib import Path

import click

from inc_tb.commands.terminal import print_json, say
from inc_tb.engines.models import open_model
from inc_tb.errors import UsageError
from inc_tb.records import plural


@click.command()
@click.argument("model")
@click.option(
    "--cure", required=True, type=click.Path(path_type=Path), metavar="RUN",
    help="The folder of a trial's run, such as nc_workspace/trial-003, or a .rewrites.json that this has written.",
)  # fmt: skip
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Where the model goes; replaces what is there.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object: model, record, rewrites.")
def apply(model: str, cure: Path, output: Path, as_json: bool) -> None:
    """Write the fp32 MODEL with the rewrites of a trial: what makes it easier to quantize and changes no result.

    MODEL is the model that was tuned, or prepared_model.onnx of a tuning without rewrites; any other is refused. Of a
    PyTorch model (file.py:function) the state_dict is written. What was done is in a .rewrites.json beside the model.
    """
    from inc_tb.tuning.applying import read_cure, rewritten, write

    given = open_model(model)
    if isinstance(given, Path) and output.exists() and output.samefile(given):
        raise UsageError(f"--output {output}: is the model that was given; expected another file.")
    if output.is_dir() or not output.parent.is_dir():
        wrong = "is a folder" if output.is_dir() else f"there is no folder {output.parent}"
        raise UsageError(f"--output {output}: {wrong}; expected a file to write to. Choose another place.")
    found = read_cure(cure)
    made = rewritten(given, found)
    record = write(made.model, found, output)
    if as_json:
        told = [{"kind": r.kind, "ops": r.ops, "because": r.because} for r in found.rewrites]
        print_json({"model": str(output), "record": str(record), "rewrites": told})
        return
    for number, rewrite in enumerate(found.rewrites, 1):
        say(f"{number}. {rewrite.kind}: {rewrite.because}.")
    first = ", prepared as before the trial" if made.was_prepared else ""
    say(f"Wrote {output}: {model}{first}, with {plural(len(found.rewrites), 'rewrite')}. {record} redoes them.")
