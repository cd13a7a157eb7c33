"""`inc-tb diagnose`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inc_tb.commands.diagnosing import Asked, Diagnosing
from inc_tb.commands.elsewhere import with_on
from inc_tb.commands.places import as_logdir
from inc_tb.commands.sharding import as_share
from inc_tb.commands.terminal import with_detail
from inc_tb.texts import LENGTH


@click.command()
@click.argument("reference")
@click.argument("quantized")
@click.option("--data", help=".npz, .npy, a folder of them, ONNX test_data_set_* folders, or file.py:function.")
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Instead of --data, for a language model: a text file, cut into sequences of tokens.",
)
@click.option("--length", default=LENGTH, show_default=True, type=click.IntRange(2), help="Tokens of a sequence.")
@click.option(
    "--tokenizer",
    metavar="PLACE",
    help="Makes tokens of text, and words of tokens: a folder of transformers or a .gguf file.  [default: REFERENCE's]",
)
@click.option("--logdir", callback=as_logdir, default="nc_workspace", show_default=True)
@click.option("--run", help="Name of the run below the logdir.  [default: the quantized file's name]")
@click.option("--append", is_flag=True, help="Log to a --run that is there already, as its next step.")
@click.option(
    "--sort",
    metavar="COLUMN",
    help="Sort the tables by this column: its id, its label, or Neural Compressor's title, such as MSE.  "
    "[default: sensitivity where the output was probed, else added_sqnr_db]",
)
@click.option("--top", default=10, show_default=True, type=click.IntRange(1), metavar="N", help="Rows to print.")
@click.option("--samples", type=click.IntRange(1), metavar="N", help="Use only the first N samples.")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    metavar="N",
    help="Samples at once.  [default: what fits the memory, measured on one]",
)
@click.option(
    "--memory",
    type=click.IntRange(1),
    metavar="MIB",
    help="What samples may take beside the models.  [default: 1024, or half of what is free where that is less]",
)
@click.option(
    "--csv",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write activations_table.csv and weights_table.csv there.",
)
@click.option(
    "--probe",
    "probe_s",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Measure at the output what quantizing each op does, for about so long; called again for the same models "
    "with the same --run it goes on. 0 leaves it out.  [default: 5, or half of what the comparison took]",
)
@click.option(
    "--profile",
    "profile_runs",
    type=click.IntRange(1),
    metavar="RUNS",
    help="Also time every op of both models in so many runs of one sample, as `inc-tb profile` does.",
)
@click.option(
    "--shard",
    callback=as_share,
    metavar="K/N",
    help="Measure only every Nth batch, from the Kth on, and leave a file for `inc-tb merge` in LOGDIR/RUN.shards.",
)
@click.option(
    "--verify", "is_verified", is_flag=True,
    help="Quantize with the first suggestion, as the quantized model was made as far as that shows, and tell the error "
    "before and after.",
)  # fmt: skip
@click.option(
    "--eval", "evaluate", metavar="FILE.PY:FUNCTION",
    help="With --verify: also the accuracy. Gets a model or the path of its file, returns a number.",
)  # fmt: skip
@click.option(
    "--no-previews", is_flag=True, help="Log no small pictures, outlines of sound or texts of the worst samples."
)
@with_on("Compare shares of the data, and evaluate what --probe asks for,")
@with_detail
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def diagnose(reference: str, quantized: str, **asked: Any) -> None:
    """Compare QUANTIZED with REFERENCE op by op, log it for TensorBoard, and say what to change.

    Both are .onnx files, models of TensorFlow (SavedModel folder, .pb, .keras, .tflite), of MXNet (-symbol.json), of
    transformers (a folder, .gguf), or file.py:function that returns a model.
    """
    Diagnosing(reference, quantized, Asked(**asked)).run()
