"""What rounding each layer of a language model does to its text, in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from inc_tb.llm.layers import Block, Effect, Layers, Scored
from inc_tb.records import plural
from inc_tb.show.grid import Column, Name, show_grid

_BARS = "▁▂▃▄▅▆▇█"
_OUTLIERS, _TIMES = 3, 50.0
"""Numbers that stand out so far are worth a line."""
_HOT, _WARM = 1 / 4, 1 / 16
"""Shares of the largest."""


def show_layers(console: Console, found: Layers, top: int) -> None:
    for line in layer_lines(found):
        console.print(escape(line), highlight=False)
    console.print()
    for what, label, some in (
        ("kind", "kinds", found.of("kind")),
        ("block", "blocks", found.of("block")[:top]),
        ("matrix", "matrices", found.of("matrix")[:top]),
    ):
        _show_effects(console, label, what, some, len(found.of(what)))
    _show_map(console, found)


def layer_lines(found: Layers) -> list[str]:
    all_ = found.everything
    over = f"{found.tokens:,} tokens of {plural(found.sequences, 'sequence')}"
    matrices = plural(len(all_.matrices), "matrix", "matrices")
    lines = [
        f"{found.format} in all {matrices}: KL divergence {_with(all_)} nats a token over {over}, same first choice "
        f"{all_.same_first:.1%}."
    ]
    if found.blocks:
        first, last = found.blocks[0], found.blocks[-1]
        lines.append(
            f"Error from the embedding to the scores: {_bars(found)} ({first.sqnr_db:.1f} dB SQNR behind block "
            f"{first.block}, {last.sqnr_db:.1f} dB behind block {last.block})."
        )
    return [*lines, *_outliers(found.blocks), _normal(found)]


def _outliers(blocks: Sequence[Block]) -> list[str]:
    """By channel: what stands out once is carried from block to block."""
    by_channel: dict[int, list[Block]] = {}
    for block in sorted((b for b in blocks if b.times >= _TIMES), key=lambda block: -block.times):
        by_channel.setdefault(block.channel, []).append(block)
    return [
        f"Outlier: {worst.largest:,.4g} behind block {worst.block}, {worst.times:,.0f} times the usual, in channel "
        f"{channel} at token {worst.place} of sequence {worst.sequence}, “{_plain(worst.token)}”; it stands out in "
        f"{plural(len(some), 'block')}."
        for channel, (worst, *_), some in ((c, found, found) for c, found in by_channel.items())
    ][:_OUTLIERS]


def _normal(found: Layers) -> str:
    usual = f"{found.format} leaves {found.bell.sqnr_db:.1f} dB SQNR of weights of a bell shape"
    unusual = sorted(found.unusual, key=lambda scored: (-scored.lost.flushed, scored.lost.sqnr_db))
    if not unusual:
        return f"{usual}, and hardly less of any of these."
    worst = unusual[0]
    return (
        f"{usual}, {found.bell.flushed:.0%} of which become zero. Clearly worse: "
        f"{plural(len(unusual), 'matrix', 'matrices')}, as {worst.matrix.name} with {worst.lost.sqnr_db:.1f} dB, "
        f"{worst.lost.flushed:.0%} of which become zero."
    )


def _show_effects(console: Console, label: str, head: str, some: Sequence[Effect], count: int) -> None:
    if not some:
        return
    shown = f" (worst {len(some)} of {count})" if len(some) < count else ""
    console.print(f"[bold]Alone[/]: {label}{shown}", highlight=False)
    largest = max(effect.kl for effect in some)
    columns = [
        Column("KL alone", "nats", [_hot(e.kl, largest, _number(e.kl)) for e in some]),
        Column("in 95 of 100", "", [Text(_interval(e)) for e in some], False),
        Column("expected", "nats", [Text(_number(e.score)) for e in some]),
        Column("same first", "", [Text(f"{e.same_first:.1%}") for e in some]),
        Column("KL without", "nats", [Text("" if e.without is None else _number(e.without)) for e in some]),
    ]
    show_grid(console, head, [Name(effect.name) for effect in some], columns)


def _show_map(console: Console, found: Layers) -> None:
    """Blocks by kinds, what is expected of each matrix; what was measured of the block, and the error behind it."""
    kinds = list(dict.fromkeys(scored.matrix.kind for scored in found.matrices))
    by_place = {(scored.matrix.block, scored.matrix.kind): scored for scored in found.matrices}
    largest = max((scored.score for scored in found.matrices), default=0.0)
    blocks = sorted({scored.matrix.block for scored in found.matrices})
    console.print("[bold]Expected of each matrix alone[/], in thousandths of nats a token", highlight=False)
    columns = [
        Column(kind.replace("_", " "), "", [_cell(by_place.get((block, kind)), largest) for block in blocks])
        for kind in kinds
    ]
    behind = {block.block: block.sqnr_db for block in found.blocks}
    columns.append(
        Column("error behind", "dB", [Text(f"{behind[b]:.1f}" if b in behind else "") for b in blocks], False)
    )
    show_grid(console, "block", [Name(str(block)) for block in blocks], columns)


def _cell(scored: Scored | None, largest: float) -> Text:
    return Text("") if scored is None else _hot(scored.score, largest, f"{1000 * scored.score:.2g}")


def _hot(value: float, largest: float, text: str) -> Text:
    share = value / largest if largest > 0 else 0.0
    return Text(text, "bold red" if share >= _HOT else "yellow" if share >= _WARM else "dim")


def _bars(found: Layers) -> str:
    """The lower the ratio, the higher the bar."""
    values = [block.sqnr_db for block in found.blocks]
    low, high = min(values), max(values)
    if high in (low, float("inf")):
        return _BARS[0] * len(values)
    return "".join(_BARS[round((high - value) / (high - low) * (len(_BARS) - 1))] for value in values)


def _with(effect: Effect) -> str:
    interval = _interval(effect)
    return f"{_number(effect.kl)} ({interval})" if interval else _number(effect.kl)


def _interval(effect: Effect) -> str:
    return "" if effect.interval is None else " to ".join(map(_number, effect.interval))


def _number(value: float) -> str:
    return f"{value:.3g}"


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "⏎" if c == "\n" else "·" for c in text)
