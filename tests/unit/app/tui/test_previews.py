"""Previews of images in cells of a terminal."""

from __future__ import annotations

import pytest

from edgeinfer.app.sessions.kept_images import Preview
from edgeinfer.app.tui.text.previews import HALF, n_preview_lines, preview_lines

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def preview(*rows: list[tuple[int, int, int]]) -> Preview:
    return Preview(len(rows[0]), bytes(number for row in rows for pixel in row for number in pixel))


def test_two_rows_of_pixels_share_a_line() -> None:
    found = preview([RED, GREEN], [BLUE, RED])
    (line,) = preview_lines(found, 2)
    assert line.text == HALF * 2
    styles = [segment.style for segment in line]
    colours = [
        (style.color.triplet, style.bgcolor.triplet) for style in styles if style and style.color and style.bgcolor
    ]
    assert colours == [(RED, BLUE), (GREEN, RED)]


def test_a_last_row_alone_has_nothing_below() -> None:
    found = preview([RED], [GREEN], [BLUE])
    assert n_preview_lines(found) == len(preview_lines(found, 80)) == 2
    (segment,) = preview_lines(found, 80)[1]
    assert segment.style is not None
    assert segment.style.bgcolor is None


@pytest.mark.parametrize("found", [preview([RED, GREEN, BLUE]), Preview(0, b"")])
def test_no_room_no_preview(found: Preview) -> None:
    assert preview_lines(found, 2) == []
