"""The command `inc-tb`."""

from __future__ import annotations

import os
import sys
import threading
import traceback

import click

import inc_tb
from inc_tb.commands.apply import apply
from inc_tb.commands.bits import bits
from inc_tb.commands.check import check, compare
from inc_tb.commands.demo import demo
from inc_tb.commands.diagnose import diagnose
from inc_tb.commands.import_ import import_
from inc_tb.commands.layers import layers
from inc_tb.commands.log import log
from inc_tb.commands.profile import profile
from inc_tb.commands.report import report
from inc_tb.commands.sharding import merge
from inc_tb.commands.suggest import suggest
from inc_tb.commands.tune import tune
from inc_tb.errors import IncTbError
from inc_tb.frameworks.registry import frameworks


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(inc_tb.__version__, prog_name="inc-tb")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End after so long, whatever runs: a model may have a loop that never ends.",
)
@click.pass_context
def cli(context: click.Context, debug: bool, time_limit: float | None) -> None:
    """Find out why a quantized model lost its accuracy."""
    if time_limit is not None:
        clock = threading.Timer(time_limit, _end, [time_limit])
        clock.daemon = True
        clock.start()
        context.call_on_close(clock.cancel)


def _end(seconds: float) -> None:
    """From a thread of its own: a runtime that is in a loop does not come back to Python."""
    sys.stderr.write(
        f"inc-tb: ended by --time-limit after {seconds:g} s; what was logged so far is kept. Give it more time, or "
        "check that the model ends: a loop in it may not.\n"
    )
    sys.stderr.flush()
    os._exit(2)


for command in (
    demo, diagnose, layers, bits, tune, profile, suggest, import_, apply, check, compare, merge, report, log,
):  # fmt: skip
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """Exit codes: 0 done, 1 a check does not hold, 2 wrong use or unusable input."""
    for framework in frameworks():
        for name, value in framework.environment.items():
            os.environ.setdefault(name, value)
    given = sys.argv[1:] if arguments is None else arguments
    if "--debug" in given:  # also behind the command
        given = ["--debug", *(argument for argument in given if argument != "--debug")]
    try:
        code = cli.main(given, prog_name="inc-tb", standalone_mode=False)
    except click.exceptions.Abort:
        sys.stderr.write("inc-tb: interrupted; what was logged so far is kept\n")
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message())
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:  # noqa: BLE001  what nobody foresaw is one line and exit code 2, too
        if "--debug" in given:
            traceback.print_exc()
        is_explained = isinstance(error, IncTbError | OSError)
        _fail(str(error) if is_explained else f"{type(error).__name__}: {error}. Run with --debug to see where.")
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    sys.stderr.write(f"inc-tb: {' '.join(message.split())}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
