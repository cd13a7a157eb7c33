"""The card of a tuning, and what a trial says."""

from __future__ import annotations

from inc_tb.records import Trial, brief, listed, plural
from inc_tb.show.cards.pieces import (
    Html,
    card,
    config,
    joined,
    line,
    marked,
    notes,
    picture,
    place,
    table,
    tag,
    verdict,
)
from inc_tb.show.quantities import quantity, title
from inc_tb.show.svg import Point, scatter
from inc_tb.show.trials import NO_GAIN
from inc_tb.show.verdict import figure
from inc_tb.tuning.loop import Tuned

_TOP = 5
_MOST_POINTS = 40


def tuned_card(tuned: Tuned) -> str:
    best = tuned.best
    holds = "The criterion holds" if tuned.met else "The criterion does not hold"
    told = f": {brief(best.name)} has {figure(best.accuracy)} (fp32 {figure(tuned.baseline)}, wanted "
    told += f"{figure(tuned.target)}). {tuned.reason[:1].upper()}{tuned.reason[1:]}."
    about = f"{plural(len(tuned.trials), 'trial')}, {plural(tuned.evaluations, 'evaluation')} in {tuned.wall_s:.1f} s"
    model = [line("The model: ", tag("code", str(tuned.model)))] if tuned.model.exists() else []
    return card(
        "Tuning", about, verdict("good" if tuned.met else "bad", tag("strong", holds), told), _trials(tuned),
        _chart(tuned),
        *_costs(tuned),
        line("Kept in fp32: ", tag("strong", brief(listed(best.fallback, 4), 240) or "nothing")), notes(best.notes),
        config("Config of the best trial", tuned.recipe, "print(tuned.recipe)"), *model,
        place(tuned.model.parent, "trials"),
    )  # fmt: skip


def _costs(tuned: Tuned) -> list[Html]:
    """What the best has in int8, and what that brings."""
    told = []
    if tuned.best.int8_macs is not None:
        told.append(line(f"{tuned.best.int8_macs:.0%} of the multiplications in int8."))
    if tuned.int8_pays is False:
        told.append(line(NO_GAIN[tuned.met]))
    return told


def trial_line(trial: Trial) -> Html:
    drop = "" if trial.drop is None else f" (fp32 {figure(trial.baseline)}, drop {_drop(trial)})"
    kept = f"; {plural(len(trial.fallback), 'op')} in fp32" if trial.fallback else ""
    return line(tag("strong", brief(trial.name)), f": accuracy {figure(trial.accuracy)}{drop}{kept}")


def _trials(tuned: Tuned) -> Html:
    """The best one and the last ones."""
    last = [trial for trial in tuned.trials[-_TOP:] if trial.name != tuned.best.name]
    rows = [[_named(t, tuned), figure(t.accuracy), _drop(t), f"{len(t.fallback)}"] for t in (tuned.best, *last)]
    left_out = len(tuned.trials) - len(rows)
    more = line(f"and {plural(left_out, 'earlier trial')}") if left_out > 0 else Html()
    return joined(table(["trial", "accuracy", "drop", "ops in fp32"], rows, (1, 2, 3)), more)


def _chart(tuned: Tuned) -> Html:
    """Accuracy against the first objective, or against the ops in fp32; the best one marked."""
    known = [trial for trial in tuned.trials if trial.accuracy is not None][-_MOST_POINTS:]
    name = next(iter(tuned.best.objectives), "")
    cost = [(trial.objectives.get(name) if name else float(len(trial.fallback)), trial) for trial in known]
    points = [
        Point(x, trial.accuracy or 0.0, f"{trial.name}: {figure(trial.accuracy)}", trial.name == tuned.best.name)
        for x, trial in cost
        if x is not None
    ]
    if len(points) < 2:
        return Html()
    ends = [min(point.x for point in points), max(point.x for point in points)]
    low, high = (quantity(name, x) if name else plural(int(x), "op in fp32", "ops in fp32") for x in ends)
    heading = f"accuracy by {title(name) or 'ops in fp32'}; the line is the target"
    return picture([scatter(points, heading, (low, high), level=tuned.target)], heading)


def _named(trial: Trial, tuned: Tuned) -> Html:
    is_best = trial.name == tuned.best.name
    return marked(brief(trial.name) + " (best)" * is_best, ("good" if tuned.met else "watch") if is_best else "")


def _drop(trial: Trial) -> str:
    return "–" if trial.drop is None else f"{trial.drop:+.4f}"
