"""The card of a profile."""

from __future__ import annotations

from rich.text import Text

from inc_tb.profiling.profile import Profile
from inc_tb.records import ProfileRow, brief, plural
from inc_tb.show.cards.pieces import Html, Mark, card, joined, line, logging, notes, picture, place, table, verdict
from inc_tb.show.profiles import verdict as compared
from inc_tb.show.svg import Bar
from inc_tb.show.svg import bars as chart_of

_TOP = 5


def profile_card(profile: Profile) -> str:
    names = " and ".join(brief(name) for name in (profile.fp32, profile.int8) if name)
    about = joined(names, f" · {plural(len(profile.rows), 'row')}, {plural(profile.runs, 'run')}")
    where = logging("add_profile(p)")
    if profile.logged is not None:
        where = place(profile.logged.parent, "profile", profile.logged.name)
    return card("Profile", about, *profile_parts(profile), where)


def profile_parts(profile: Profile) -> list[Html]:
    total, sides = profile.total, profile.sides
    times = [f"{side} {us:,.1f} µs a run" for side in sides if (us := getattr(total, f"{side}_us")) is not None]
    found = [line(", ".join(times) or "no time of a whole run is known")]
    if total.differs is not None and total.low_us is not None and total.high_us is not None:
        found.append(verdict(_mark(total), Text.from_markup(compared(total)).plain))
    rows = [
        [_name(row), brief(row.type, 30), *(_us(getattr(row, f"{side}_us")) for side in sides), f"{share:.1%}"]
        for row, share, _ in profile.by_time()[:_TOP]
    ]
    bars = [
        Bar(_name(row), [getattr(row, f"{side}_us") for side in sides], f"{share:.0%}")
        for row, share, _ in profile.by_time()[:_TOP]
    ]
    title = f"time of the slowest ops in {' and '.join(sides)}, share of {sides[-1]}"
    chart = picture([chart_of(bars, title)], title) if bars else Html()
    titles = ["op", "type", *(f"{side}, µs" for side in sides), f"share of {sides[-1]}"]
    return [*found, table(titles, rows, range(2, len(titles))), chart, notes(profile.notes)]


def _mark(total: ProfileRow) -> Mark:
    if not total.differs:
        return "watch"
    return "bad" if (total.difference_us or 0.0) > 0 else "good"


def _name(row: ProfileRow) -> str:
    return brief(row.op) + (f" +{len(row.ops)}" if row.ops else "") if row.op else "outside of all ops"


def _us(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"
