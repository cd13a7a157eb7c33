"""`inc-tb report`"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click
from rich.markup import escape

from inc_tb.commands.places import Place, as_place
from inc_tb.commands.terminal import out, print_json, say
from inc_tb.errors import UsageError
from inc_tb.records import plural
from inc_tb.show.quantities import size
from inc_tb.store.reader import logged_runs
from inc_tb.store.remote import fetched

_MAILED_BYTES = 25_000_000
_PAGES, _TEXTS = (".html", ".htm"), (".md", ".markdown")


@click.command()
@click.argument("logged", metavar="LOGDIR|RUN", callback=as_place)
@click.option(
    "--output", "-o", required=True, type=click.Path(path_type=Path), metavar="FILE",
    help="report.html: the Quantization tab in one file, which any browser opens without TensorBoard or a network. "
    "report.md: a summary for a pull request. Replaces what is there.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: path, bytes, runs.")
def report(logged: Place, output: Path, as_json: bool) -> None:
    """Write what is logged below LOGDIR, or in one RUN, into one file to send: by mail, or as an artifact of CI."""
    if output.suffix.lower() not in (*_PAGES, *_TEXTS):
        raise UsageError(f"--output {output}: expected a name that ends with .html or .md, such as report.html.")
    with fetched(logged) if isinstance(logged, str) else nullcontext(logged) as folder:
        folders = logged_runs(folder)
        data = _written(folders, folder.resolve().name, is_page=output.suffix.lower() in _PAGES)
    _write(output, data)
    if as_json:
        print_json({"path": str(output), "bytes": len(data), "runs": list(folders)})
    else:
        what = f"{plural(len(folders), 'run')}, {size(len(data))}" if output.suffix in _PAGES else "a summary"
        if len(data) > _MAILED_BYTES:
            say("That is more than most mail takes: report one run alone, or a summary with -o report.md.")
        out.print(f"Wrote [bold]{escape(str(output))}[/]: {what}.", highlight=False, soft_wrap=True)


def _written(folders: dict[str, Path], name: str, *, is_page: bool) -> bytes:
    if is_page:
        from inc_tb.show.page import page_of

        return page_of(folders, f"{name}: quantization")
    from inc_tb.show.markdown import report_text

    return report_text(folders).encode()


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{path}: cannot write there ({error.strerror}). Choose another place.") from error
