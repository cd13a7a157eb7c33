"""A profile: the ops that take most time, totals, and what suggestions cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from inc_tb.profiling.benchmark import Speed
from inc_tb.profiling.profile import Profile, speedup
from inc_tb.records import ProfileRow, Suggestion, listed, plural
from inc_tb.show.detail import Detail
from inc_tb.show.grid import Column, Name, show_grid
from inc_tb.show.verdict import show_verdict, verdict_of_profile

_SLOWED = 0.15
"""By a profiler, as a share; more is worth a word."""


def show_benchmark(console: Console, speeds: Sequence[Speed], of: str = "") -> None:
    """Latency and throughput by the size of the batches; it fits 80 columns."""
    timed = [speed for speed in speeds if not speed.note]
    sides = [side for side in ("fp32", "int8") if any(getattr(speed, f"{side}_us") is not None for speed in timed)]
    columns = [
        Column(side, unit, [Text(_number(getattr(speed, f"{side}_{field}"), factor)) for speed in timed])
        for unit, field, factor in (("latency ms", "us", 1e-3), ("samples/s", "samples_per_s", 1.0))
        for side in sides
    ]
    if len(sides) > 1:
        columns.append(Column("speed-up", "", [Text(_gain(speed)) for speed in timed]))
    if timed:
        console.print(f"[bold]Benchmark[/]{escape(of)}", highlight=False)
        show_grid(console, "batch size", [Name(str(speed.batch_size)) for speed in timed], columns)
    for speed in speeds:
        if speed.note:
            told = f"no times with {plural(speed.batch_size, 'sample')} at once: {speed.note}"
            console.print(f"[yellow]note:[/] {escape(told)}", highlight=False)


def _number(value: float | None, factor: float = 1.0) -> str:
    """With three digits at least."""
    if value is None:
        return "–"
    value *= factor
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 3}f}" if value >= 0.1 else f"{value:.3g}"


def _gain(speed: Speed) -> str:
    if speed.speedup is None:
        return "–"
    told = f"{speed.speedup:.2f}"
    return f"{told} (noise)" if speed.differs is False else told


def show_profile(console: Console, profile: Profile, top: int = 10, detail: Detail = Detail.USUAL) -> None:
    """The verdict first."""
    show_verdict(console, verdict_of_profile(profile))
    if detail is not Detail.QUIET:
        show_times(console, profile, top)


def show_times(console: Console, profile: Profile, top: int = 10) -> None:
    """Nodes sorted by total execution time, with share and cumulative share; as many columns as fit."""
    sides, rows = profile.sides, profile.by_time()
    last = sides[-1]
    console.print(
        f"[bold]Profiling summary[/]: {min(top, len(rows))} of {plural(len(rows), 'row')}, by time in {last}",
        highlight=False,
    )
    cells: dict[str, Callable[[ProfileRow, float, float], str]] = {}
    if "fp32" in sides:
        cells["fp32"] = lambda row, _, __: _us(row.fp32_us)
    if "int8" in sides:
        cells["int8"] = lambda row, _, __: _us(row.int8_us)
    if len(sides) > 1:
        cells["change"] = lambda row, _, __: _gap(row)
    cells["share"] = lambda _, share, __: f"{share:.1%}"
    cells["cumulative"] = lambda _, __, upto: f"{upto:.1%}"
    if last == "int8":
        cells["conversion"] = lambda row, _, __: _us(row.convert_us or None)
    cells[f"{last} p95"] = lambda row, _, __: _us(getattr(row, f"{last}_p95_us"))
    needed = {*sides, "change", "share"}
    columns = [Column("type", "", [Text(row.type) for row, _, __ in rows[:top]], is_needed=False, is_text=True)]
    for label, cell in cells.items():
        unit = "" if label in ("share", "cumulative") else "µs"
        columns.append(Column(label, unit, [Text.from_markup(cell(*row)) for row in rows[:top]], label in needed))
    show_grid(console, "op", [_name(row) for row, _, __ in rows[:top]], columns)
    _show_totals(console, profile, sides)
    if profile.benchmark:
        console.print()
        show_benchmark(console, profile.benchmark)
    for note in profile.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", highlight=False)
    console.print()


def _name(row: ProfileRow) -> Name:
    if not row.op:
        return Name("outside of all ops", style="dim")
    return Name(row.op, more=f" +{len(row.ops)}" if row.ops else "")


def _show_totals(console: Console, profile: Profile, sides: Sequence[str]) -> None:
    total = profile.total
    for side in sides:
        median, p95 = getattr(total, f"{side}_us"), getattr(total, f"{side}_p95_us")
        if median is None:
            continue
        rate = f", {profile.samples * 1e6 / median:,.0f} samples/s" if profile.samples and median else ""
        slower = f"; the profiler adds {profile.overhead[side]:.0%}" if side in profile.overhead else ""
        slower += ", so times of short ops are rough" if profile.overhead.get(side, 0.0) > _SLOWED else ""
        parts = f"; ops take {profile.accounted[side]:.0%} of it" if side in profile.accounted else ""
        tail = "" if p95 is None else f" (p95 {_us(p95)})"
        console.print(f"{side}: {_us(median)} µs a run{tail}{rate}{parts}{slower}", highlight=False)
    if total.differs is not None and total.low_us is not None and total.high_us is not None:
        console.print(verdict(total), highlight=False)


def show_prices(console: Console, suggestions: Sequence[Suggestion]) -> None:
    """What each suggestion costs or gains in time."""
    for s in suggestions:
        for effect in (e for e in s.effects if e.what == "time"):
            verb, style = ("saves", "green") if effect.kind == "recovers" else ("costs", "yellow")
            price = f"[{style}]{verb} {_us(effect.value)} µs a run[/]" if effect.value else "takes as long"
            console.print(
                f"Suggestion {s.rank}, {s.rule.replace('_', ' ')}: keeping {escape(listed(s.ops))} in fp32 {price} "
                f"({escape(effect.how)}).",
                highlight=False,
            )


def verdict(total: ProfileRow) -> str:
    """In rich's markup."""
    interval = f"int8 - fp32 is between {total.low_us:+.1f} and {total.high_us:+.1f} µs (95 %)"
    if not total.differs:
        return f"[yellow]The two models cannot be told apart[/]: {interval}."
    ratio = speedup(total) or 1.0
    if (ratio < 1) != ((total.difference_us or 0.0) > 0):  # medians and undisturbed runs disagree
        return f"[yellow]int8 and fp32 take about as long[/]: {interval}."
    word = (
        f"[green]int8 is {ratio:.2f} times as fast[/]"
        if ratio >= 1
        else f"[red]int8 is {1 / ratio:.2f} times slower[/]"
    )
    return f"{word}: {interval}."


def _us(value: float | None) -> str:
    return "[dim]–[/]" if value is None else f"{value:,.1f}"


def _gap(row: ProfileRow) -> str:
    if row.difference_us is None:
        return "[dim]–[/]"
    if not row.differs:
        return "[dim]noise[/]"
    return f"[{'red' if row.difference_us > 0 else 'green'}]{row.difference_us:+,.1f}[/]"
