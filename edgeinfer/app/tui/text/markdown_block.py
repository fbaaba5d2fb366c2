"""One block of Markdown as Rich draws it, parsed as everything here is.

In: the source of a block. Out: a renderable. Headings stand at the left, links show their addresses.
"""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown

from edgeinfer.app.tui.text.blocks import parser


class _LeftHeading(Heading):
    """A heading at the left, as wide as its text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class MarkdownBlock(Markdown):
    """One block, parsed as everything here is."""

    elements = {**Markdown.elements, "heading_open": _LeftHeading}  # noqa: RUF012 - as the base has it

    def __init__(self, source: str, code_theme: str) -> None:
        super().__init__("", code_theme=code_theme, hyperlinks=False)
        self.markup = source
        self.parsed = parser().parse(source)
