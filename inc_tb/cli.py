"""The command `inc-tb`."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from importlib import import_module

import click

import inc_tb
from inc_tb.errors import IncTbError

_COMMANDS = {
    "demo": "See it find a culprit: a real CNN, three quantizations, under a minute, nothing needed.",
    "diagnose": "Compare QUANTIZED with REFERENCE op by op, log it for TensorBoard, and say what to change.",
    "layers": "Round the layers of a language model, and tell which of them its text suffers from.",
    "bits": "Give each layer of a language model its format, so that all fit a budget and the text suffers least.",
    "tune": "Find the fastest quantized form of MODEL whose accuracy holds, prove it, and write it.",
    "profile": "Measure where the time goes, op by op: in MODEL, or in MODEL (fp32) against MODEL2 (int8).",
    "suggest": "Print the config of a suggestion: what keeps its ops in fp32, or the setting that cures it.",
    "import": "Log what another tool has measured, for TensorBoard.",
    "apply": "Write the fp32 MODEL with the rewrites of a trial: "
    "what makes it easier to quantize and changes no result.",
    "check": "Hold runs to limits: exit code 0 if all hold, 1 if one does not.",
    "compare": "Tell whether the run NEW is worse than the run BASE by more than chance, and which op did it.",
    "merge": "Make one run of the SHARDS that `inc-tb diagnose --shard` has left: files, or folders of them.",
    "report": "Write what is logged below LOGDIR, or in one RUN, into one file to send: "
    "by mail, or as an artifact of CI.",
    "log": "Log what is in one RUN, or in all runs below LOGDIR, to a tracker: "
    "MLflow, Weights & Biases, or one of yours.",
}
"""What --help says of each, so that it need not load them all."""
_HOMES = {"import": ("import_", "import_"), "compare": ("check", "compare"), "merge": ("sharding", "merge")}
"""The module and the name in it, where they are not the command's own."""


class _Commands(click.Group):
    """Loads a command when it is called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, loaded(command.name) if command is not None and command.name else command, rest


def loaded(name: str) -> click.Command:
    """The command itself, with its options."""
    from inc_tb.frameworks.registry import frameworks

    for framework in frameworks():
        for variable, value in framework.environment.items():
            os.environ.setdefault(variable, value)
    module, attribute = _HOMES.get(name, (name, name))
    command: click.Command = getattr(import_module(f"inc_tb.commands.{module}"), attribute)
    return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
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


for _name, _text in _COMMANDS.items():
    cli.add_command(click.Command(_name, help=_text))


def main(arguments: list[str] | None = None) -> None:
    """Exit codes: 0 done, 1 a check does not hold, 2 wrong use or unusable input."""
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
