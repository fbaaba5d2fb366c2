"""Draws a Markdown table at any width: as columns if there is room, else as one line per cell.

In: cells. Out: a renderable. No cell is truncated: long words are broken.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import TableElement
from rich.table import Table
from rich.text import Text

LEAST_CELLS, GAP_CELLS = 6, 2
"""Minimum width of a column in a side-by-side layout, and the gap between columns."""


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
