"""`inc-tb check` and `inc-tb compare`: what a pipeline stops at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inc_tb.commands.places import Place, as_place, as_places
from inc_tb.commands.terminal import check_output, say

if TYPE_CHECKING:
    from inc_tb.gate.outcome import Outcome

_FORMATS = ("text", "json", "junit", "markdown", "github")


def _printing(command: Any) -> Any:
    """The options that the two share."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
        click.option(
            "-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
            help="Write there, and the text to standard output; replaces what is there.",
        ),
        click.option(
            "--format", "form", type=click.Choice(_FORMATS), default="text", show_default=True,
            help="junit is for test reports, markdown for a pull request, github for annotations.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@click.argument("runs", nargs=-1, required=True, callback=as_places)
@click.option(
    "--limit", "limits", multiple=True, metavar="LIMIT",
    help="NAME>=NUMBER, or with <=, >, <, ==, !=: a column of the op table, for each op that has a value; accuracy, "
    "drop, latency, size, an objective; ok, watch, bad (how many ops), fallback, samples. Again for several.",
)  # fmt: skip
@click.option("--max-bad", type=click.IntRange(0), metavar="N", help="At most so many ops may have the verdict bad.")
@_printing
def check(
    runs: tuple[Place, ...],
    limits: tuple[str, ...],
    max_bad: int | None,
    form: str,
    output: Path | None,
    as_json: bool,
) -> int:
    """Hold runs to limits: exit code 0 if all hold, 1 if one does not.

    RUNS are folders of single runs, such as nc_workspace/trial-001. Without --limit and --max-bad the limits are those
    of [tool.inc-tb.check] in the nearest pyproject.toml; where there are none either, no op may be bad.
    """
    from inc_tb.gate.configured import limits_of, limits_of_project
    from inc_tb.gate.limits import check as check_run
    from inc_tb.gate.outcome import of_checks
    from inc_tb.store.reader import load

    check_output(output)
    wanted = limits_of(limits, max_bad) or limits_of_project(Path.cwd()) or limits_of((), 0)
    return _deliver(of_checks([one for run in runs for one in check_run(load(run), wanted)]), form, output, as_json)


@click.command()
@click.argument("base", callback=as_place)
@click.argument("new", callback=as_place)
@_printing
def compare(base: Place, new: Place, form: str, output: Path | None, as_json: bool) -> int:
    """Tell whether the run NEW is worse than the run BASE by more than chance, and which op did it.

    No limit is needed: how much the error of the model's output varies from sample to sample tells a change from noise.
    Exit code 0 if nothing got worse, 1 if something did.
    """
    from inc_tb.gate.comparing import compare as compare_runs
    from inc_tb.gate.outcome import of_comparison
    from inc_tb.store.reader import load

    check_output(output)
    return _deliver(of_comparison(compare_runs(load(base), load(new))), form, output, as_json)


def _deliver(outcome: Outcome, form: str, output: Path | None, as_json: bool) -> int:
    from inc_tb.gate.outcome import FORMATS, as_text

    written = FORMATS["json" if as_json else form](outcome)
    if output is not None:
        output.write_text(written, encoding="utf-8")
        say(f"Wrote {output}.")
        written = as_text(outcome)
    sys.stdout.buffer.write(written.encode())
    sys.stdout.flush()
    return 0 if outcome.ok else 1
