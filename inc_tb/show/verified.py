"""What a suggestion does when the tool that quantizes carries it out."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inc_tb.records import plural
from inc_tb.show.quantities import number
from inc_tb.tuning.rewriting import Rewritten
from inc_tb.tuning.verify import ANEW, CURED, GIVEN, Verified


def show_verified(console: Console, verified: Verified) -> None:
    table = Table(title="Suggestion 1, really quantized", title_justify="left", title_style="bold")
    table.add_column("")
    for form in verified.comparison:
        table.add_column(form, justify="right")
    table.add_row("error / signal", *(f"{found.error:.4g}" for found in verified.comparison.values()))
    for name, label in (("agreement", "same top-1"), ("cosine", "cosine")):
        values = [getattr(found, name) for found in verified.comparison.values()]
        if any(value is not None for value in values):
            table.add_row(label, *("–" if value is None else f"{value:.4g}" for value in values))
    if verified.accuracy:
        table.add_row("accuracy", *(f"{value:.4f}" for value in verified.accuracy.values()))
    console.print(table)
    settings = ", ".join(f"{name}={value}" for name, value in verified.settings.items() if value not in ("", []))
    console.print(
        f"Quantized with {escape(settings)}. Assumed: {escape('; '.join(verified.assumed))}.", highlight=False
    )
    if not verified.is_alike:
        before, after = (verified.comparison[form].error for form in (GIVEN, ANEW))
        console.print(
            f"[yellow]note:[/] quantized anew without the suggestion the error is {after:.3g}, that of the model given "
            f"{before:.3g}: it was made otherwise than assumed. Compare {CURED} with {ANEW}",
            highlight=False,
        )
    console.print()


def show_rewritten(console: Console, found: Rewritten, command: str) -> None:
    """What takes the cause away and keeps no op in fp32."""
    what = plural(len(found.rewrites), "rewrite of the fp32 model that leaves", "rewrites of the fp32 model that leave")
    error = f"{number(found.before.error, 3)} → {number(found.after.error, 3)}"
    console.print(
        f"[bold]Or without an op in fp32[/]: {what} its results as they are; quantized as before, error / signal "
        f"{error} (measured):",
        highlight=False,
    )
    console.print(f"   {escape(command)}", highlight=False, soft_wrap=True)
    console.print()
