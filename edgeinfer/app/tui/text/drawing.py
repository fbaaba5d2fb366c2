"""Draws Markdown blocks as lines of terminal cells.

In: a `Block`, a width, a `Palette`. Out: strips of at most that width. Links show their addresses and are not
clickable; unsupported syntax is shown as text. Knows no widgets.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme
from textual.strip import Strip

from edgeinfer.app.tui.text.code_colours import CodeColours, fence_label, ruled
from edgeinfer.app.tui.text.markdown import Block

TAB_CELLS = 4
HIGHLIGHTED_CHARACTERS = 20_000
"""Longer code is drawn without highlighting, which would block everything else."""

DEEPEST = 16
"""Blocks with deeper nested quotes and lists are drawn as plain text, because the parser drops what is too deep."""

LEAST_CELLS = 8
"""Blocks whose quotes and lists leave fewer cells of a line than this are drawn as plain text, too."""

SIGNS = "*_[`<&\\~"
MOST_SIGNS = 5000
"""A block with more Markdown characters is drawn as plain text: matching them takes quadratic time."""


@dataclass(frozen=True, slots=True)
class Palette:
    """Styles of the elements of Rich's Markdown, and the code theme."""

    accent: str = "bold"
    muted: str = "dim"
    code: str = "bold"
    code_theme: str = "ansi_dark"
    has_colour: bool = True

    def theme(self) -> Theme:
        """The styles as a Rich theme."""
        styles: dict[str, str | Style] = {
            "markdown.h1": f"{self.accent} bold underline",
            "markdown.code": self.code,
            "markdown.code_block": self.code,
            "markdown.block_quote": "italic",
            "markdown.item.bullet": self.accent,
            "markdown.item.number": self.accent,
            "markdown.hr": self.muted,
            "markdown.link": "underline",
            "markdown.link_url": self.muted,
            "markdown.table.border": self.muted,
            "markdown.table.header": f"{self.accent} bold",
        }
        styles.update({f"markdown.h{level}": f"{self.accent} bold" for level in range(2, 8)})
        return Theme(styles)


class Drawer:
    """Draws at one width, in one palette."""

    def __init__(self, width: int, palette: Palette) -> None:
        self.width = max(1, width)
        self.palette = palette
        self._colours = CodeColours(palette.code_theme, self._bare)
        self._console = Console(
            file=io.StringIO(),
            width=self.width,
            height=100,
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
            theme=palette.theme(),
            markup=False,
            emoji=False,
            highlight=False,
            _environ={},
        )

    def block(self, block: Block, n_fence: int = 1) -> list[Strip]:
        """Draw a block. `n_fence`: the number of its first code fence."""
        from edgeinfer.app.tui.text.markdown_block import MarkdownBlock  # slow import, deferred until there is text

        if block.opening is not None:
            head = self.fence_head(block.opening.language, n_fence)
            foot = [self._rule("")] if block.is_closed else []
            return [head, *self.code(block.source, block.opening.language), *foot]
        if sum(map(block.source.count, SIGNS)) > MOST_SIGNS:
            return self.plain(block.source)
        found = MarkdownBlock(block.source.expandtabs(TAB_CELLS), self._colours, block.number, n_fence)
        if found.n_levels > DEEPEST or (found.n_aside and found.n_aside + LEAST_CELLS > self.width):
            return self.plain(block.source)
        return self._lines(found)

    def fence_head(self, language: str, number: int) -> Strip:
        """The line above a code fence: its number, which commands take, and its language."""
        return self._rule(fence_label(language, number))

    def _rule(self, label: str) -> Strip:
        """A line across the width, with a label. Lines at the sides would be copied with the code."""
        muted = self._bare(self._console.get_style(self.palette.muted))
        return Strip([Segment(ruled(label, self.width), muted)])

    def plain(self, text: str, style: str = "") -> list[Strip]:
        """Draw a text without formatting, with long lines wrapped."""
        bare = self._bare(self._console.get_style(style)) if style else None
        lines = text.expandtabs(TAB_CELLS).split("\n")
        return _trimmed([strip for line in lines for strip in self._fitted([Segment(line, bare)] if line else [])])

    def code(self, code: str, language: str) -> list[Strip]:
        """Draw highlighted code, with long lines wrapped."""
        if len(code) > HIGHLIGHTED_CHARACTERS:
            return self.plain(code.rstrip("\n"), self.palette.code)
        lines = self._colours.lines(code.rstrip("\n").expandtabs(TAB_CELLS), language)
        return _trimmed([strip for line in lines for strip in self._fitted(line)])

    def code_line(self, line: str, language: str) -> list[Strip]:
        """Draw a single line of code, while the following lines have not arrived."""
        return self.code(line, language)

    def text(self, text: Text) -> list[Strip]:
        """Draw a styled text."""
        text.expand_tabs(TAB_CELLS)
        text.overflow = "fold"
        return self._lines(text)

    def _fitted(self, segments: list[Segment]) -> list[Strip]:
        """Wrap a line if it is too long."""
        strip = Strip(segments)
        if strip.cell_length <= self.width:
            return [strip.simplify()]
        return self.text(Text.assemble(*((segment.text, segment.style or "") for segment in segments)))

    def _lines(self, renderable: RenderableType) -> list[Strip]:
        options = self._console.options.update(width=self.width, height=None, highlight=False)
        lines = self._console.render_lines(renderable, options, pad=False)
        strips = [Strip(self._harmless(line)).simplify() for line in lines]
        return [strip.crop(0, self.width) if strip.cell_length > self.width else strip for strip in _trimmed(strips)]

    def _harmless(self, segments: Iterable[Segment]) -> list[Segment]:
        """Remove control codes, links, metadata, and backgrounds that would cover the screen's."""
        return [Segment(segment.text, self._bare(segment.style)) for segment in segments if not segment.control]

    def _bare(self, style: Style | None) -> Style | None:
        has_colour = self.palette.has_colour
        if style is None or not (style.link or style.meta or style.bgcolor or (style.color and not has_colour)):
            return style
        return Style(
            color=style.color if has_colour else None,
            bold=style.bold,
            dim=style.dim,
            italic=style.italic,
            underline=style.underline,
            strike=style.strike,
            reverse=style.reverse,
        )


def _trimmed(strips: list[Strip]) -> list[Strip]:
    """Remove blank lines at both ends."""
    seen = [place for place, strip in enumerate(strips) if strip.text.strip()]
    return strips[seen[0] : seen[-1] + 1] if seen else strips[:1]


def text_of(strips: Iterable[Strip]) -> str:
    """The text of lines, for comparison."""
    return "\n".join(strip.text.rstrip() for strip in strips)
