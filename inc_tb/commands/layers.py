"""`inc-tb layers`"""

from __future__ import annotations

from pathlib import Path

import click

from inc_tb.commands.terminal import out, print_json, progress_bar, with_detail
from inc_tb.commands.texts import Text, with_text
from inc_tb.engines.models import open_model
from inc_tb.llm.formats import EXAMPLES, find_format


@click.command()
@click.argument("model")
@with_text
@click.option(
    "--format", "format_", default="int4-g128", show_default=True, metavar="FORMAT",
    help=f"What the weights are rounded to: {EXAMPLES}, …",
)  # fmt: skip
@click.option(
    "--finalists", default=10, show_default=True, type=click.IntRange(0), metavar="N",
    help="Matrices to measure alone; half as many matrices and blocks are also left out.",
)  # fmt: skip
@click.option("--top", default=10, show_default=True, type=click.IntRange(1), metavar="N", help="Rows to print.")
@with_detail
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def layers(
    model: str, text: Path, length: int, tokenizer: str | None, samples: int, format_: str, finalists: int, top: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Round the layers of a language model, and tell which of them its text suffers from.

    MODEL is in floating point: a folder of transformers, a .gguf file, or file.py:function that returns a module. The
    weights of its linear layers are rounded here as the format does; no tool is run, and nothing is written.
    """
    from inc_tb.llm.layers import measure_layers
    from inc_tb.show.layers import show_layers

    find_format(format_)  # before anything takes time
    given = Text(model, text, length, tokenizer, samples)
    language = given.open(open_model(model))
    with progress_bar("rounding layers") as progress:
        found = measure_layers(
            language, given.batches, format_, finalists=finalists, decode=given.decode, progress=progress
        )
    if as_json:
        print_json(found.to_json())
    else:
        show_layers(out, found, top)
