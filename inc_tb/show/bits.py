"""Which bits each matrix of a language model gets, in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from inc_tb.llm.bits import Allocated, Choice
from inc_tb.show.grid import Column, Name, show_grid


def show_bits(console: Console, found: Allocated) -> None:
    for line in bits_lines(found):
        console.print(escape(line), highlight=False)
    console.print()
    choices = found.choices
    columns = [
        Column("bits", "", [Text(f"{c.bits:.2f}") for c in choices]),
        Column("size", "MB", [Text(f"{c.size / 1e6:.4g}") for c in choices]),
        Column("KL", "nats", [Text(_number(c.kl), "bold green" if c is found.best else "") for c in choices]),
        Column("in 95 of 100", "", [Text(_range(c.interval)) for c in choices], False),
        Column("expected", "nats", [Text(_number(c.expected)) for c in choices]),
        Column("same first", "", [Text(f"{c.same_first:.1%}") for c in choices]),
        Column("fits", "", [Text("yes" if c.fits else "") for c in choices]),
    ]
    show_grid(console, "what", [Name(choice.name) for choice in choices], columns)


def bits_lines(found: Allocated) -> list[str]:
    best = found.best
    lines = [
        f"Best within {found.budget:.4g} bits a weight: {best.name}, {_counts(best)}. KL divergence {_number(best.kl)}"
        f"{_in_brackets(best.interval)} nats a token over {found.tokens:,} tokens that the scores have not seen, "
        f"{best.bits:.2f} bits, {best.size / 1e6:.4g} MB with all else in 16 bits."
    ]
    uniform = found.uniform
    if uniform is None:
        lines.append("No format fits for all matrices alike.")
    elif uniform is best:
        lines.append("No mixture that was measured is better than one format for all.")
    else:
        lines.append(
            f"The best format for all that fits, {_counts(uniform)}, has {_number(uniform.kl)} with "
            f"{uniform.bits:.2f} bits; the difference is {_range(found.gain)} in 95 of 100 cases."
            if found.gain is not None
            else f"The best format for all that fits, {_counts(uniform)}, has {_number(uniform.kl)} with "
            f"{uniform.bits:.2f} bits."
        )
    return lines


def _counts(choice: Choice) -> str:
    return ", ".join(f"{count} in {name}" for name, count in choice.counts().items())


def _in_brackets(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" ({_range(interval)})"


def _range(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else " to ".join(map(_number, interval))


def _number(value: float) -> str:
    return f"{value:.3g}"
