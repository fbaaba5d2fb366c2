"""Kitty's graphics protocol, as far as pictures in text need it: send, show by Unicode placeholders, delete.

In: a picture, its number, a size in cells. Out: control sequences, and strips of placeholder cells. A placeholder says
which cell of which picture it is: row and column by combining characters, the picture by its colour, which therefore
has to reach the terminal unchanged, in 24 bits. Nothing is answered (q=2): the app reads keys and nothing else.

Source: https://sw.kovidgoyal.net/kitty/graphics-protocol/, "Unicode placeholders".
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from edgeinfer.app.sessions.kept_images import Preview

PLACEHOLDER = "\U0010eeee"
CHUNK_CHARACTERS = 4096
_FIRST_NUMBER = 0x650000
"""Any; other programs that draw beside the app would have to choose the same."""

_COMBINING = """
305 30d-30e 310 312 33d-33f 346 34a-34c 350-352 357 35b 363-36f 483-487 592-595 597-599 59c-5a1 5a8-5a9 5ab-5ac 5af
5c4 610-617 657-65b 65d-65e 6d6-6dc 6df-6e2 6e4 6e7-6e8 6eb-6ec 730 732-733 735-736 73a 73d 73f-741 743 745 747
749-74a 7eb-7f1 7f3 816-819 81b-823 825-827 829-82d 951 953-954 f82-f83 f86-f87 135d-135f 17dd 193a 1a17 1a75-1a7c
1b6b 1b6d-1b73 1cd0-1cd2 1cda-1cdb 1ce0 1dc0-1dc1 1dc3-1dc9 1dcb-1dcc 1dd1-1de6 1dfe 20d0-20d1 20d4-20d7 20db-20dc
20e1 20e7 20e9 20f0 2cef-2cf1 2de0-2dff a66f a67c-a67d a6f0-a6f1 a8e0-a8f1 aab0 aab2-aab3 aab7-aab8 aabe-aabf aac1
fe20-fe26 10a0f 10a38 1d185-1d189 1d1aa-1d1ad 1d242-1d244
"""
"""The combining characters for 0, 1, 2 and so on, in the protocol's order."""


def _numerals() -> Iterator[str]:
    for span in _COMBINING.split():
        first, _, last = span.partition("-")
        yield from map(chr, range(int(first, 16), int(last or first, 16) + 1))


NUMERALS = tuple(_numerals())
MOST_CELLS = len(NUMERALS)
"""Largest width and height of a picture in cells."""


def picture_number(n_before: int) -> int:
    """The number of a picture, after so many others of the app; its 24 bits are the colour of its placeholders."""
    return _FIRST_NUMBER + 1 + n_before % 0xFFFF


def sent(picture: Preview, number: int, columns: int, rows: int) -> str:
    """Send a picture, to be fitted into a rectangle of cells wherever there are placeholders of its number."""
    text = base64.standard_b64encode(zlib.compress(picture.rgb, 6)).decode("ascii")
    chunks = [text[at : at + CHUNK_CHARACTERS] for at in range(0, len(text), CHUNK_CHARACTERS)]
    keys = f"a=T,U=1,i={number},f=24,o=z,s={picture.width},v={picture.height},c={columns},r={rows},q=2,"
    last = len(chunks) - 1
    return "".join(
        f"\x1b_G{keys if place == 0 else ''}m={int(place < last)};{chunk}\x1b\\" for place, chunk in enumerate(chunks)
    )


def deleted(number: int) -> str:
    """Delete a picture from the screen and from the terminal's memory."""
    return f"\x1b_Ga=d,d=I,i={number},q=2\x1b\\"


def placeholder_lines(number: int, columns: int, rows: int) -> list[Strip]:
    """Cells in which the terminal draws a picture, each complete in itself, as lines may be cut anywhere."""
    style = Style(color=Color.from_rgb(number >> 16, number >> 8 & 255, number & 255))
    lines = []
    for row in NUMERALS[:rows]:
        text = "".join(f"{PLACEHOLDER}{row}{column}" for column in NUMERALS[:columns])
        lines.append(Strip([Segment(text, style)], columns))
    return lines
