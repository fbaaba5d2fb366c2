"""One block of Markdown as Rich draws it, parsed as everything here is.

In: the source of a block, and its number where it is an item. Out: a renderable. Line breaks in a paragraph are kept,
headings stand at the left, links show their addresses, items have their numbers. Characters that were written by their
names are as harmless as all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from edgeinfer.app.tui.text.code_colours import CodeColours
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.text.parsing import parser
from edgeinfer.app.tui.text.table import FoldingTable

if TYPE_CHECKING:
    from markdown_it.token import Token

QUOTE_CELLS, ITEM_CELLS = 4, 3
"""What a quote takes of a line, and an item besides its number."""


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


class _Code(CodeBlock):
    """Code in an item or a quote, coloured as all other code is."""

    colours: CodeColours

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> CodeBlock:
        assert isinstance(markdown, MarkdownBlock)
        code = cls((token.info.split() or [""])[0], markdown.code_theme)
        code.colours = markdown.colours
        return code

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment.line()
        for line in self.colours.lines(str(self.text).rstrip(), self.lexer_name):
            if Segment.get_line_length(line) < options.max_width:
                yield from (Segment(" "), *line, Segment.line())
            else:
                text = Text.assemble(*((segment.text, segment.style or "") for segment in line), overflow="fold")
                yield Padding(text, (0, 0, 0, 1))


class MarkdownBlock(Markdown):
    """One block, parsed as everything here is."""

    elements = {  # noqa: RUF012 - as the base has it
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "list_item_open": _Item,
        "table_open": FoldingTable,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, source: str, colours: CodeColours, number: int | None = None) -> None:
        vars(self).update(vars(_blank()))  # made once: the base makes a parser each time, which takes longest
        self.markup = source
        self.colours = colours
        self.parsed = parser().parse(source)
        for token in self.parsed:
            _tame(token.children or ())
        if number is not None and self.parsed and self.parsed[0].type == "ordered_list_open":
            self.parsed[0].attrs["start"] = number

    @property
    def n_levels(self) -> int:
        """How deep its quotes and lists are in each other."""
        return max((token.level for token in self.parsed), default=0)

    @property
    def n_aside(self) -> int:
        """How many cells the signs of its quotes and lists take, where they are deepest."""
        open_ones, most = [0], 0
        for token in self.parsed:
            if token.type in ("blockquote_open", "list_item_open"):
                sign = QUOTE_CELLS if token.type == "blockquote_open" else ITEM_CELLS + len(token.info)
                open_ones.append(open_ones[-1] + sign)
                most = max(most, open_ones[-1])
            elif token.type in ("blockquote_close", "list_item_close"):
                open_ones.pop()
        return most


@cache
def _blank() -> Markdown:
    """Nothing, drawn as everything here is."""
    return Markdown("", hyperlinks=False)


def _tame(tokens: Sequence[Token]) -> None:
    """Keep the line breaks of the source, and make entities such as &#13; harmless: they are characters only now."""
    for token in tokens:
        if token.type == "softbreak":  # CommonMark reads it as a space, but a chat is written line by line
            token.type = "hardbreak"
        elif token.type == "text" and not token.content.isprintable():
            token.content = neutral(token.content).replace("\n", " ")
