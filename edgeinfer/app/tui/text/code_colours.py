"""Code as lines of coloured segments, without a layout of its own: lines that fit need none, and it costs the most.

In: code, its language, the theme of code. Out: segments for each line. Knows neither widths nor what is on the screen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

if TYPE_CHECKING:
    from rich.syntax import Syntax


class CodeColours:
    """Colours code in one theme; `bare` takes from styles what the screen does not want."""

    def __init__(self, theme: str, bare: Callable[[Style], Style | None]) -> None:
        self._theme = theme
        self._bare = bare
        self._syntaxes: dict[str, Syntax] = {}
        self._styles: dict[object, Style | None] = {}

    def lines(self, code: str, language: str) -> list[list[Segment]]:
        """The lines of code without tabs, each as what it says and in which style."""
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
        """What knows a language; looking for it takes longer than a line of code."""
        if language not in self._syntaxes:
            from rich.syntax import Syntax  # takes a while, and not before there is code

            lexer = Syntax("", language or "text").lexer or Syntax("", "text").lexer
            assert lexer is not None
            self._syntaxes[language] = Syntax("", lexer)
        return self._syntaxes[language]
