"""`inc-tb bits`"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from inc_tb.commands.places import as_logdir
from inc_tb.commands.terminal import (
    check_folder,
    check_output,
    invite,
    out,
    print_json,
    progress_bar,
    say,
    with_detail,
)
from inc_tb.commands.texts import Text, with_text
from inc_tb.engines.models import open_model
from inc_tb.errors import UsageError
from inc_tb.frameworks.registry import framework_of, frameworks
from inc_tb.llm.formats import EXAMPLES, find_format

if TYPE_CHECKING:
    from inc_tb.llm.bits import Allocated

_TOOLS = [tool for framework in frameworks() for tool in framework.bit_tools]
_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _as_size(_: click.Context, __: click.Parameter, given: str | None) -> int | None:
    if given is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?b)", given.strip().lower())
    if found is None:
        raise UsageError(f"--size {given} was given; expected a size such as 80MB or 4.5GiB.")
    return int(float(found[1]) * _UNITS[found[2]])


@click.command()
@click.argument("model")
@with_text
@click.option(
    "--formats", default="int4-g32,int8,bf16", show_default=True, metavar="FORMAT,FORMAT…",
    help=f"What each matrix may be rounded to: {EXAMPLES}, …",
)  # fmt: skip
@click.option("--bits", type=click.FloatRange(1, 32), metavar="N", help="Of a weight, the mean, scales included.")
@click.option("--size", callback=_as_size, metavar="SIZE", help="Instead of --bits: of the whole model, such as 80MB.")
@click.option(
    "--curve", default=3, show_default=True, type=click.IntRange(0), metavar="N", help="Also measure N other budgets."
)
@click.option("--recipe", type=click.Choice(_TOOLS), help="Write the best one for this tool …")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="… there instead of printing it.")
@click.option("--logdir", callback=as_logdir, default="nc_workspace", show_default=True)
@with_detail
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def bits(
    model: str, text: Path, length: int, tokenizer: str | None, samples: int, formats: str, bits: float | None,
    size: int | None, curve: int, recipe: str | None, output: Path | None, logdir: Path, as_json: bool,
) -> None:  # fmt: skip
    """Give each layer of a language model its format, so that all fit a budget and the text suffers least.

    MODEL is in floating point: a folder of transformers, a .gguf file, or file.py:function that returns a module. What
    is likely best is told from the first half of the sequences; everything that is printed is measured on the second.
    """
    from inc_tb.llm.bits import allocate
    from inc_tb.show.bits import show_bits

    names = [name.strip() for name in formats.split(",") if name.strip()]
    for name in names:
        find_format(name)  # before anything takes time
    if (bits is None) == (size is None):
        raise UsageError(f"expected --bits or --size; {'neither was' if bits is None else 'both were'} given.")
    if output is not None and recipe is None:
        raise UsageError(f"--output was given without --recipe; expected one of {', '.join(_TOOLS)} as well.")
    check_output(output)
    check_folder(logdir)
    given = Text(model, text, length, tokenizer, samples)
    opened = open_model(model)
    framework = framework_of(opened)
    language = given.open(opened)
    if recipe is not None:  # what it cannot say is told before anything takes time
        matrices = [matrix.name for matrix in language.matrices]
        framework.write_bits(recipe, dict(zip(matrices, itertools.cycle(names), strict=False)))
    first, second = given.halves()
    with progress_bar("rounding layers") as progress:
        found = allocate(language, first, second, names, bits=bits, size=size, curve=curve, progress=progress)
    told = "" if recipe is None else framework.write_bits(recipe, found.best.formats)
    _log(found, logdir)
    if output is not None:
        output.write_text(told)
    if as_json:
        print_json({**found.to_json(), **({"recipe": told} if told else {})})
        return
    show_bits(out, found)
    if output is not None:
        say(f"Wrote {output}.")
    elif told:
        out.print(told, markup=False, highlight=False, soft_wrap=True)
    invite(logdir)


def _log(found: Allocated, logdir: Path) -> None:
    """A trial for everything that was measured."""
    from inc_tb.records import Trial
    from inc_tb.store.writer import SummaryWriter

    for choice in found.choices:
        counts = {f"matrices in {name}": count for name, count in choice.counts().items()}
        trial = Trial(
            choice.name, choice.kl, 0.0, config={"formats": choice.name, **counts},
            objectives={"size_kb": choice.size / 1000, "bits": choice.bits}, lower_is_better=True,
            notes=["the accuracy is the KL divergence, nats a token"],
        )  # fmt: skip
        with SummaryWriter(logdir / re.sub(r"[^\w.-]+", "-", choice.name)) as writer:
            writer.add_trial(trial)
