"""One block of Markdown as Rich draws it, parsed as everything here is.

In: the source of a block, and its number where it is an item. Out: a renderable. Headings stand at the left, links show
their addresses, items have their numbers. Characters that were written by their names are as harmless as all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, ListItem, Markdown
from rich.segment import Segment

from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.text.parsing import parser

if TYPE_CHECKING:
    from markdown_it.token import Token


class _LeftHeading(Heading):
    """A heading at the left, as wide as its text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Item(ListItem):
    """An item whose number looks the same whether the others are there yet or not."""

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        sign = f" {number}. "
        style = console.get_style("markdown.item.number", default="none")
        lines = console.render_lines(
            self.elements, options.update(width=max(1, options.max_width - len(sign))), style=self.style
        )
        for place, line in enumerate(lines):
            yield Segment(" " * len(sign) if place else sign, style)
            yield from line
            yield Segment("\n")


class MarkdownBlock(Markdown):
    """One block, parsed as everything here is."""

    elements = {  # noqa: RUF012 - as the base has it
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "list_item_open": _Item,
    }

    def __init__(self, source: str, code_theme: str, number: int | None = None) -> None:
        super().__init__("", code_theme=code_theme, hyperlinks=False)
        self.markup = source
        self.parsed = parser().parse(source)
        for token in self.parsed:
            _tame(token.children or ())
        if number is not None and self.parsed and self.parsed[0].type == "ordered_list_open":
            self.parsed[0].attrs["start"] = number

    @property
    def n_levels(self) -> int:
        """How deep its quotes and lists are in each other."""
        return max((token.level for token in self.parsed), default=0)


def _tame(tokens: Sequence[Token]) -> None:
    """Entities such as &#13; are characters only now."""
    for token in tokens:
        if token.type == "text" and not token.content.isprintable():
            token.content = neutral(token.content).replace("\n", " ")
