"""Mouse selection of text in a widget that draws its own lines: highlighting and extraction.

In: a Textual selection, in lines of the widget and characters of a line. Out: lines with the selection highlighted, and
the selected text. Knows no transcript.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.style import Style
from textual.selection import Selection
from textual.strip import Strip


def highlighted(strip: Strip, selection: Selection, line: int, style: Style) -> Strip:
    """Highlight the selected part of a line, and renew the offsets of its pieces."""
    span = selection.get_span(line)
    if span is None:
        return strip
    text = strip.text
    begin, end = (cell_len(text[:place]) for place in (span[0], len(text) if span[1] < 0 else span[1]))
    if begin >= end:
        return strip
    before, selected, after = strip.crop(0, begin), strip.crop(begin, end), strip.crop(end)
    selected = Strip([segment._replace(style=(segment.style or Style()) + style) for segment in selected])
    return Strip.join([before, selected, after]).apply_offsets(0, line)


def extracted(selection: Selection, n_lines: int, text_of: Callable[[int], str]) -> str:
    """The selected text. `text_of(line)` returns a line; called only for selected lines.

    The common left margin is removed, because edges and margins are not part of the text.
    """
    first = 0 if selection.start is None else max(0, selection.start.y)
    last = n_lines - 1 if selection.end is None else min(n_lines - 1, selection.end.y)
    taken = []
    for line in range(first, last + 1):
        text, span = text_of(line), selection.get_span(line)
        if span is not None:
            begin, end = span[0], len(text) if span[1] < 0 else span[1]
            taken.append((" " * begin + text[begin:end]).rstrip())
    margin = min((len(text) - len(text.lstrip()) for text in taken if text), default=0)
    return "\n".join(text[margin:] for text in taken)
