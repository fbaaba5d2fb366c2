"""Previews of images as lines of terminal cells, two pixels in each: the upper half block and what is behind it.

In: a `Preview`, a width. Out: strips. Works wherever there are colours; without them an image is its name alone.
"""

from __future__ import annotations

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from edgeinfer.app.sessions.kept_images import Preview

HALF = "▀"


def preview_lines(preview: Preview, width: int) -> list[Strip]:
    """The lines of a preview; none if it is wider than there is room."""
    if preview.width > width:
        return []
    return [_line(preview, row) for row in range(0, preview.height, 2)]


def n_preview_lines(preview: Preview) -> int:
    """The number of lines of a preview."""
    return (preview.height + 1) // 2


def _line(preview: Preview, row: int) -> Strip:
    has_lower = row + 1 < preview.height
    segments = []
    for column in range(preview.width):
        upper = Color.from_rgb(*preview.pixel(row, column))
        lower = Color.from_rgb(*preview.pixel(row + 1, column)) if has_lower else None
        segments.append(Segment(HALF, Style(color=upper, bgcolor=lower)))
    return Strip(segments, preview.width)
