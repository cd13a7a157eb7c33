"""What quantizing a language model does to its text, in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from inc_tb.records import Tokens, WorstToken, plural
from inc_tb.show.grid import Column, Name, show_grid

_WORST = 5
_BEFORE = 28


def show_tokens(console: Console, tokens: Tokens | None) -> None:
    if tokens is None:
        return
    for line in token_lines(tokens):
        console.print(escape(line), highlight=False)
    worst = tokens.worst[:_WORST]
    if worst:
        cells = zip(*map(_cells, worst), strict=True)
        heads = ("KL", "nats"), ("fp32 expects", ""), ("quantized expects", ""), ("in the text", "")
        columns = [
            Column(*head, [Text(cell) for cell in column], True) for head, column in zip(heads, cells, strict=True)
        ]
        console.print("[bold]Tokens[/]: where the two models are furthest apart", highlight=False)
        show_grid(console, "behind", [Name(f"…{_plain(w.before)[-_BEFORE:]}") for w in worst], columns)


def token_lines(tokens: Tokens) -> list[str]:
    """The verdict: what the reader of the text notices."""
    count = f"{tokens.count:,} tokens of {plural(tokens.sequences, 'sequence')}"
    kl, first, five = (_with(tokens, *name) for name in (("kl", ".4g"), ("same_top1", ".1%"), ("same_top5", ".1%")))
    found = [f"Over {count}: KL divergence {kl} nats a token, same first choice {first}, among the first five {five}."]
    mine, theirs = tokens.perplexity_reference, tokens.perplexity_quantized
    if mine is not None and theirs is not None and tokens.change_nll is not None:
        change = _with(tokens, "change_nll", "+.4g")
        found.append(f"Perplexity {mine:.4g} in fp32, {theirs:.4g} quantized: {change} nats a token.")
    if tokens.left_out:
        found.append(f"{plural(tokens.left_out, 'token')} left out, whose scores are no finite numbers.")
    return found


def _with(tokens: Tokens, name: str, spec: str) -> str:
    """With the interval that holds it in 95 of 100 cases, where there is one."""
    low, high = tokens.intervals.get(name, (None, None))
    interval = f" ({low:{spec}} to {high:{spec}})" if low is not None and high is not None else ""
    return f"{getattr(tokens, name):{spec}}{interval}"


def _cells(worst: WorstToken) -> tuple[str, ...]:
    return f"{worst.kl:.3g}", _quoted(worst.reference), _quoted(worst.quantized), _quoted(worst.actual)


def _quoted(token: str) -> str:
    return f"“{_plain(token)}”" if token else ""


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "⏎" if c == "\n" else "·" for c in text)
