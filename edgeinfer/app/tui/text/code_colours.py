"""Highlights code as lines of coloured segments, and rules it off. Skips Rich's layout: lines that fit need none.

In: code, its language, the code theme. Out: segments for each line; the text of the rules. Knows no screen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

if TYPE_CHECKING:
    from rich.syntax import Syntax


class CodeColours:
    """Highlights code in one theme; `bare` removes unwanted attributes from styles."""

    def __init__(self, theme: str, bare: Callable[[Style], Style | None]) -> None:
        self._theme = theme
        self._bare = bare
        self._syntaxes: dict[str, Syntax] = {}
        self._styles: dict[object, Style | None] = {}

    def lines(self, code: str, language: str) -> list[list[Segment]]:
        """Highlight code that contains no tabs. Returns the styled segments of each line."""
        syntax = self._syntax(language)
        lexer, theme = syntax.lexer, syntax.get_theme(self._theme)
        assert lexer is not None
        lines: list[list[Segment]] = [[]]
        for kind, token in lexer.get_tokens(code):
            if kind not in self._styles:
                self._styles[kind] = self._bare(theme.get_style_for_token(kind))
            style = self._styles[kind]
            for place, part in enumerate(token.split("\n")):
                if place:
                    lines.append([])
                if part:
                    lines[-1].append(Segment(part, style))
        return lines

    def _syntax(self, language: str) -> Syntax:
        """The highlighter of a language, cached because looking it up takes longer than highlighting a line."""
        if language not in self._syntaxes:
            from rich.syntax import Syntax  # slow import, deferred until there is code

            lexer = Syntax("", language or "text").lexer or Syntax("", "text").lexer
            assert lexer is not None
            self._syntaxes[language] = Syntax("", lexer)
        return self._syntaxes[language]


def fence_label(language: str, number: int) -> str:
    """The label of a code fence."""
    return f"{number} {language}" if language else str(number)


def ruled(label: str, width: int) -> str:
    """A line of this width with a label near its beginning."""
    said = set_cell_size(label, max(0, width - 8)).rstrip() if cell_len(label) > width - 8 else label
    return f"── {said} {'─' * max(0, width - cell_len(said) - 4)}"[:width] if said else "─" * width
