"""A Rich renderable for one block of Markdown, with its tables.

In: the source of a block, and the number of a numbered list item. Out: a renderable. Line breaks in a paragraph are
kept, headings are left-aligned, links show their addresses, items have their numbers, cells of tables are never
truncated. Characters written as entities are neutralised like all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, TableElement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from edgeinfer.app.tui.text.code_colours import CodeColours, fence_label, ruled
from edgeinfer.app.tui.text.markdown import parser
from edgeinfer.app.tui.text.neutral import neutral

if TYPE_CHECKING:
    from markdown_it.token import Token

LEAST_CELLS, GAP_CELLS = 6, 2
"""Minimum width of a column in a side-by-side layout, and the gap between columns."""
QUOTE_CELLS, ITEM_CELLS = 4, 3
"""Cells taken by a quote, and by a list item without its number."""


class FoldingTable(TableElement):
    """A table that never truncates its cells."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        headings = self._headings()
        if len(headings) * (LEAST_CELLS + GAP_CELLS) <= options.max_width:
            yield self._beside(headings)
        else:
            yield from self._under(headings)

    def _headings(self) -> list[Text]:
        """The column headings."""
        cells = [] if self.header is None or self.header.row is None else self.header.row.cells
        headings = [cell.content.copy() for cell in cells]
        for heading in headings:
            heading.stylize("markdown.table.header")
        return headings

    def _rows(self) -> list[list[Text]]:
        return [] if self.body is None else [[cell.content for cell in row.cells] for row in self.body.rows]

    def _beside(self, headings: list[Text]) -> Table:
        table = Table(
            box=box.SIMPLE, pad_edge=False, style="markdown.table.border", show_edge=True, collapse_padding=True
        )
        for heading in headings:
            table.add_column(heading, overflow="fold")
        for row in self._rows():
            table.add_row(*row)
        return table

    def _under(self, headings: list[Text]) -> Iterator[Text]:
        """Each row as lines of heading and cell; only the headings if there are no rows."""
        if not self._rows():
            yield from (_broken(heading) for heading in headings)
        for place, row in enumerate(self._rows()):
            if place:
                yield Text()
            for heading, cell in zip(headings, row, strict=True):
                yield _broken(Text.assemble(heading, ": ", cell) if heading.plain else cell)


def _broken(text: Text) -> Text:
    text.overflow = "fold"
    return text


class _LeftHeading(Heading):
    """A left-aligned heading, as wide as its text."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Item(ListItem):
    """A list item whose number has the same width regardless of later items."""

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
    """Code in a list item or a quote, highlighted like all other code."""

    colours: CodeColours
    label = ""
    """Of a fence: its number and language; "" for indented code, which commands do not number."""

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> CodeBlock:
        assert isinstance(markdown, MarkdownBlock)
        code = cls((token.info.split() or [""])[0], markdown.code_theme)
        code.colours = markdown.colours
        if token.type == "fence":
            code.label = fence_label(neutral(code.lexer_name), markdown.next_fence())
        return code

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment.line()
        yield from self._rule(self.label, console, options)
        yield from self._code_lines(options)
        yield from self._rule("", console, options)

    def _rule(self, label: str, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.label:
            yield Segment(ruled(label, options.max_width), console.get_style("markdown.hr"))
            yield Segment.line()

    def _code_lines(self, options: ConsoleOptions) -> RenderResult:
        for line in self.colours.lines(str(self.text).rstrip(), self.lexer_name):
            if Segment.get_line_length(line) < options.max_width:
                yield from (Segment(" "), *line, Segment.line())
            else:
                text = Text.assemble(*((segment.text, segment.style or "") for segment in line), overflow="fold")
                yield Padding(text, (0, 0, 0, 1))


class MarkdownBlock(Markdown):
    """One block, parsed by the app's own parser."""

    elements = {  # noqa: RUF012 - declared like this in the base class
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "list_item_open": _Item,
        "table_open": FoldingTable,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, source: str, colours: CodeColours, number: int | None = None, n_fence: int = 1) -> None:
        """`number`: of a numbered list item; `n_fence`: the number of the first code fence."""
        vars(self).update(vars(_blank()))  # cached: the base class creates a parser each time, the slowest part
        self.markup = source
        self.colours = colours
        self._first_fence = self._n_fence = n_fence
        self.parsed = parser().parse(source)
        for token in self.parsed:
            _tame(token.children or ())
        if number is not None and self.parsed and self.parsed[0].type == "ordered_list_open":
            self.parsed[0].attrs["start"] = number

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self._n_fence = self._first_fence
        yield from super().__rich_console__(console, options)

    def next_fence(self) -> int:
        """The number of the next code fence."""
        self._n_fence += 1
        return self._n_fence - 1

    @property
    def n_levels(self) -> int:
        """The nesting depth of its quotes and lists."""
        return max((token.level for token in self.parsed), default=0)

    @property
    def n_aside(self) -> int:
        """The maximum number of cells that the markers of its quotes and lists take."""
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
    """An empty renderable whose attributes every block copies."""
    return Markdown("", hyperlinks=False)


def _tame(tokens: Sequence[Token]) -> None:
    """Keep line breaks of the source, and neutralise entities such as &#13;, which parsing turns into characters."""
    for token in tokens:
        if token.type == "softbreak":  # CommonMark treats this as a space, but in chats line breaks count
            token.type = "hardbreak"
        elif token.type == "text" and not token.content.isprintable():
            token.content = neutral(token.content).replace("\n", " ")
