"""Words of users and models in Markdown, where nothing in them means anything."""

from __future__ import annotations

import re


def code(words: str) -> str:
    """Literally, in a line of Markdown."""
    line = " ".join(words.split()) or "(no name)"
    return f"`` {line} ``" if "`" in line else f"`{line}`"


def plain(words: str) -> str:
    return re.sub(r"([\\`*_\[\]#|])", r"\\\1", words).replace("<", "&lt;")
