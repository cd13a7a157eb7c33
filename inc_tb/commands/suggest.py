"""`inc-tb suggest`"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from inc_tb.advise.configs import Fitted, find_recipe, formats_listed, recipes_for, write_for
from inc_tb.advise.names import check_names
from inc_tb.commands.places import Place, as_place
from inc_tb.commands.terminal import check_output, say
from inc_tb.errors import UsageError
from inc_tb.frameworks.patterns import exact_patterns
from inc_tb.frameworks.registry import named
from inc_tb.records import Recipe, Suggestion

if TYPE_CHECKING:
    from inc_tb.store.reader import Run


@click.command()
@click.argument("run", callback=as_place)
@click.option(
    "--format",
    "tool",
    metavar="FORMAT",
    help=f"The tool to write for, as far as it fits the run's framework: {formats_listed()}.  [default: the one that "
    "the suggestion has first]",
)
@click.option(
    "--rank", "ranks", multiple=True, type=int, metavar="N", help="Which suggestion; again for several in one config."
)
@click.option("--all", "take_all", is_flag=True, help="All suggestions in one config.")
@click.option(
    "--op", "names", multiple=True, metavar="NAME", help="Keep this op in fp32 instead; again for several of them."
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write there; replaces what is there.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: run, format, ops, rank, because, config.")
def suggest(
    run: Place, tool: str | None, ranks: tuple[int, ...], take_all: bool, names: tuple[str, ...], output: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Print the config of a suggestion: what keeps its ops in fp32, or the setting that cures it.

    RUN is the folder of one run, such as nc_workspace/trial-001. The config alone goes to standard output, the reason
    for it to standard error. Without --rank, --all or --op it is the first suggestion; where a run has none there is
    nothing to change, so that nothing is printed and the exit code is 0.
    """
    if bool(ranks) + take_all + bool(names) > 1:
        raise UsageError("--rank, --all and --op were given together; expected one of them. Leave out the others.")
    from inc_tb.store.reader import load

    logged = load(run)
    # A list of names is of use whatever the model is.
    available = recipes_for(logged.diagnosis.framework, logged.ops)
    chosen = [] if names else _chosen(run, logged.suggestions, ranks, take_all)
    recipe = _offered_first(available, chosen) if tool is None else find_recipe(available, tool)
    ops = _in_graph_order(logged, dict.fromkeys([*names, *(name for s in chosen for name in s.ops)]))
    config = _config(logged, recipe, ops)
    _explain(chosen, ops, recipe, logged.diagnosis.is_measured)
    found: dict[str, Any] = {"run": str(run), "format": recipe.tool, "ops": ops}
    found.update(rank=[s.rank for s in chosen], because=[s.because for s in chosen], config=config)
    _deliver(msgspec.json.encode(found) if as_json else config.encode(), output)


def _in_graph_order(logged: Run, names: Iterable[str]) -> list[str]:
    place = {name: row for row, name in enumerate(logged.ops["name"].tolist())}
    return sorted(names, key=lambda name: place.get(name, len(place)))


def _offered_first(available: Sequence[Fitted], chosen: Sequence[Suggestion]) -> Recipe:
    """What all of them have first: the cure that their text names. Else the first that keeps ops in fp32."""
    firsts = {next(iter(suggestion.recipes), "") for suggestion in chosen}
    same = (f.recipe for f in available if firsts == {f.recipe.tool})
    return next(same, next(f.recipe for f in available if f.recipe.item))


def _config(logged: Run, recipe: Recipe, ops: Sequence[str]) -> str:
    """What the tool is to be told; nothing where there is nothing to change."""
    known = logged.ops["name"].tolist()
    check_names(ops, known)
    nameless = _nameless(logged, ops) if "{tensor}" not in recipe.item else []
    if nameless:
        say(f"Careful: without a name of their own in the file, so that no tool finds them: {', '.join(nameless)}.")
    return write_for(recipe, ops, logged.diagnosis.graph, exact_patterns(ops, known)) if ops else ""


def _nameless(logged: Run, ops: Sequence[str]) -> list[str]:
    framework = named(logged.diagnosis.framework)
    if framework is None:
        return []
    return [node.name for node in logged.diagnosis.graph if node.name in ops and framework.nameless(node)]


def _chosen(run: Place, suggestions: Sequence[Suggestion], ranks: Sequence[int], take_all: bool) -> list[Suggestion]:
    if not ranks:
        return list(suggestions if take_all else suggestions[:1])
    by_rank = {s.rank: s for s in suggestions}
    for rank in ranks:
        if rank not in by_rank:
            there = f"expected one of {', '.join(map(str, by_rank))}" if by_rank else "it has none at all"
            raise UsageError(f"--rank {rank}: {run} has no suggestion of that rank; {there}.")
    return [by_rank[rank] for rank in dict.fromkeys(ranks)]


def _explain(chosen: Sequence[Suggestion], ops: Sequence[str], recipe: Recipe, is_measured: bool) -> None:
    for s in chosen:
        say(f"{s.rank}. {s.rule.replace('_', ' ')}: {s.because.rstrip('.')}.")
    why = "no op adds enough error to be worth a change" if is_measured else "no op of this run was measured"
    say(f"{recipe.label}. {recipe.note}" if ops else f"No suggestions: {why}.")


def _deliver(text: bytes, output: Path | None) -> None:
    """To standard output, where nothing means nothing: no empty line."""
    if output is None:
        sys.stdout.buffer.write(text + b"\n" if text else b"")
        sys.stdout.flush()
        return
    check_output(output)
    output.write_bytes(text + b"\n" if text else b"")
    say(f"Wrote {output}.")
