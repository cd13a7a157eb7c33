"""Cards of a diagnosis and of a probe."""

from __future__ import annotations

import math

from inc_tb.advise.configs import is_setting
from inc_tb.measure.diagnosis import Diagnosis
from inc_tb.records import Suggestion, brief, listed, plural
from inc_tb.search.probe import Probe
from inc_tb.show.cards.pieces import (
    Html,
    Mark,
    card,
    config,
    joined,
    line,
    logging,
    marked,
    notes,
    picture,
    place,
    table,
    tag,
    verdict,
)
from inc_tb.show.plots import drawn
from inc_tb.show.verdict import measured, short_reason

_TOP = 5
_BUCKETS = 64
_MARKS: dict[str, Mark] = {"bad": "bad", "watch": "watch", "ok": "good"}


def diagnosis_card(diagnosis: Diagnosis) -> str:
    return card("Diagnosis", models(diagnosis), *diagnosis_parts(diagnosis, "d"), whereabouts(diagnosis))


def probe_card(probe: Probe) -> str:
    reached = f"{plural(len(probe.units), 'unit')} probed in {probe.seconds:.1f} s"
    reached += "" if probe.complete else "; not all of them within the time"
    return card(
        "Probe", joined(models(probe.diagnosis), f" · {reached}"), *_at_the_output(probe),
        *diagnosis_parts(probe.diagnosis, "p.diagnosis"), whereabouts(probe.diagnosis),
    )  # fmt: skip


def models(diagnosis: Diagnosis) -> Html:
    """Which, and how much was looked at."""
    quantized, reference = (brief(name) for name in (diagnosis.quantized, diagnosis.reference))
    return joined(f"{quantized or 'a model'} against {reference or 'its reference'} · {diagnosis.counts}")


def diagnosis_parts(diagnosis: Diagnosis, name: str) -> list[Html]:
    """The verdict, the worst ops, the first cure and what else there is to know; `name` is what to call it in code."""
    first = diagnosis.cure
    mark: Mark = "bad" if first is not None else "good" if diagnosis.is_healthy else "watch"
    found = [verdict(mark, _verdict(diagnosis)), _worst(diagnosis), _histogram(diagnosis)]
    if first is not None:
        found += _cure(diagnosis, first, name)
    return [*found, notes(diagnosis.notes)]


def whereabouts(diagnosis: Diagnosis) -> Html:
    if diagnosis.logged is None:
        return logging("add_diagnosis(d)")
    view = "suggestions" if diagnosis.suggestions else ""
    return place(diagnosis.logged.parent, view, diagnosis.logged.name)


def _verdict(diagnosis: Diagnosis) -> Html:
    """The first cure says what is wrong where there is one."""
    first = diagnosis.cure
    if first is None:
        missing = list(diagnosis.missing.items())[:1] if diagnosis.ranked_by is None else []
        said = diagnosis.verdict[:1].upper() + diagnosis.verdict[1:]
        return joined(said, *(f"; {brief(op)}: {reason}" for op, reason in missing), ".")
    count = len(diagnosis.suggestions)
    more = f" (the first of {count} suggestions)" if count > 1 else ""
    return joined(tag("strong", first.rule.replace("_", " ")), f"{more}: ", first.because, ".")


def _worst(diagnosis: Diagnosis) -> Html:
    """Rows by the column that ranks them, with what each op adds beside it."""
    by, ops = diagnosis.ranked_by, diagnosis.ops
    if by is None:
        return Html()
    shown = [name for name in dict.fromkeys((by, "added_sqnr_db")) if name in ops]
    columns = [ops.column(name) for name in shown]
    rows = [
        [
            brief(str(ops["name"][i])), brief(str(ops["type"][i]), 30) if "type" in ops else "",
            *("–" if math.isnan(ops[c.name][i]) else c.figure(ops[c.name][i]) for c in columns),
            *_judged(diagnosis, i),
        ]
        for i in diagnosis.worst(_TOP, sort=by)
        if not math.isnan(ops[by][i])
    ]  # fmt: skip
    titles = ["op", "type", *(column.label for column in columns), "verdict", "reason"]
    return table(titles, rows, range(2, 2 + len(columns)))


def _histogram(diagnosis: Diagnosis) -> Html:
    """Of what the worst op writes; or of its weights, where that is all that is known."""
    worst = diagnosis.worst(1, sort=diagnosis.ranked_by) if diagnosis.ranked_by is not None else []
    rows = {row.role: row for row in diagnosis.histograms if worst and row.op == diagnosis.ops["name"][worst[0]]}
    row = rows.get("output") or rows.get("weight")
    if row is None or not (row.reference or row.quantized):
        return Html()
    return picture([drawn(row, 480, 110, _BUCKETS)], f"{row.op} {row.role}")


def _judged(diagnosis: Diagnosis, row: int) -> tuple[str, str]:
    told = str(diagnosis.ops["verdict"][row]) if "verdict" in diagnosis.ops else ""
    return marked(told, _MARKS.get(told, "")), short_reason(diagnosis, row)


def _cure(diagnosis: Diagnosis, first: Suggestion, name: str) -> list[Html]:
    is_instead = is_setting(diagnosis.framework, diagnosis.ops, first)
    keep = "Instead of keeping in fp32: " if is_instead else "Keep in fp32: "
    found = [line(keep, tag("strong", brief(listed(first.ops, 4), 240)))]
    found += (
        [line("Measured with these in fp32: " if is_instead else "Measured: ", "; ".join(measured(first)[:3]))]
        if measured(first)
        else []
    )
    tool = next(iter(first.recipes), "")
    return [*found, config(f"Config for {tool}", first.recipe, f"print({name}.cure.recipe)")]


def _at_the_output(probe: Probe) -> list[Html]:
    """How far the outputs are from fp32's, and what explains it."""
    rows = [
        [form, f"{c.error:.3g}", "–" if c.agreement is None else f"{c.agreement:.1%}"]
        for form, c in list(probe.comparison.items())[:4]
    ]
    found = [table(["output of", "error / signal", "same top-1"], rows, (1, 2))]
    kept = probe.explaining
    if kept is not None:
        units = brief(listed(kept.units, 4), 240)
        found.append(line("Keeping ", tag("strong", units), f" in fp32 removes {kept.recovered:.1%} of the error."))
    return found
