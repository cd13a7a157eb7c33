"""Code to copy: in colors on a terminal, and elsewhere as it is, for what is broken into lines cannot be run."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

_INDENT = 3


def show_recipe(console: Console, recipe: str) -> None:
    if console.is_terminal:
        from rich.syntax import Syntax  # with a lexer for every language

        code = Syntax(recipe, "python", word_wrap=True, background_color="default")
        console.print(Padding(code, (0, 0, 0, _INDENT)))
    else:
        lines = Text(textwrap.indent(recipe.rstrip("\n"), " " * _INDENT))
        console.print(lines, soft_wrap=True, highlight=False)
