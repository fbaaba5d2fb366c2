"""Kitty's protocol: sequences, placeholders, and which pictures the terminal has."""

from __future__ import annotations

import base64
import re
import unicodedata
import zlib

import numpy as np
import pytest
from rich.color import ColorType
from textual.geometry import Offset
from textual.selection import Selection

from edgeinfer.app.sessions.kept_images import Preview, kept_image
from edgeinfer.app.tui.graphics.image_previews import MOST_PICTURES, ImagePreviews, TerminalPictures, preview_picture
from edgeinfer.app.tui.graphics.kitty import NUMERALS, PLACEHOLDER, deleted, picture_number, placeholder_lines, sent
from edgeinfer.app.tui.text.drawing import Drawer, Palette
from edgeinfer.app.tui.widgets.transcript_lines import extracted
from edgeinfer.errors import BadImage
from tests.pictures import picture

NOISE = Preview(64, np.random.default_rng(0).integers(0, 256, 64 * 48 * 3, np.uint8).tobytes())
MESSAGE = re.compile(r"\x1b_G([^;\x1b]*);?([^\x1b]*)\x1b\\")
SEA = kept_image(picture(640, 480), "sea.png")


def test_a_picture_is_sent_in_chunks_that_give_its_pixels() -> None:
    messages = MESSAGE.findall(sent(NOISE, 7, 24, 8))
    assert "".join(f"\x1b_G{keys};{data}\x1b\\" for keys, data in messages) == sent(NOISE, 7, 24, 8)
    assert messages[0][0] == "a=T,U=1,i=7,f=24,o=z,s=64,v=48,c=24,r=8,q=2,m=1"
    assert [keys for keys, _ in messages[1:]] == ["m=1"] * (len(messages) - 2) + ["m=0"]
    assert all(len(data) == 4096 for _, data in messages[:-1])
    assert zlib.decompress(base64.b64decode("".join(data for _, data in messages))) == NOISE.rgb


def test_a_small_picture_is_one_message() -> None:
    ((keys, _),) = MESSAGE.findall(sent(Preview(1, b"abc"), 7, 1, 1))
    assert keys.endswith("q=2,m=0")


def test_numerals_are_combining_characters_that_differ() -> None:
    assert len(set(NUMERALS)) == len(NUMERALS) == 297
    assert all(unicodedata.combining(numeral) == 230 for numeral in NUMERALS)
    assert (NUMERALS[0], NUMERALS[1], NUMERALS[296]) == ("\u0305", "\u030d", "\U0001d244")


def test_placeholders_can_be_cut_anywhere() -> None:
    lines = placeholder_lines(0x650102, 24, 8)
    assert [line.cell_length for line in lines] == [24] * 8
    assert sum(segment.cell_length for segment in lines[3]) == 24
    (segment,) = lines[3].crop(5, 7)
    assert segment.text == "".join(f"{PLACEHOLDER}{NUMERALS[3]}{NUMERALS[column]}" for column in (5, 6))
    assert segment.style is not None
    assert segment.style.color is not None
    assert segment.style.color.type is ColorType.TRUECOLOR
    assert tuple(segment.style.color.triplet or ()) == (0x65, 1, 2)


def test_numbers_fit_a_colour() -> None:
    assert picture_number(0) != picture_number(1)
    assert all(0 < picture_number(n_before) < 1 << 24 for n_before in (0, 1, 65534, 65535, 10**9))


def test_pictures_are_sent_once_and_the_oldest_goes() -> None:
    pictures = TerminalPictures()
    for place in range(MOST_PICTURES):
        assert "a=d" not in pictures.send(f"{place}", Preview(1, b"abc"), 1, 1)
    first, second = pictures.number("0"), pictures.number("1")
    assert first is not None
    assert second is not None
    assert pictures.send("more", Preview(1, b"abc"), 1, 1).startswith(deleted(first))
    assert pictures.number("0") is None
    assert pictures.send("1", Preview(1, b"abc"), 1, 1).startswith(deleted(second))
    assert pictures.clear().count("a=d,d=I,") == MOST_PICTURES
    assert pictures.clear() == ""


@pytest.mark.parametrize(("setting", "n_lines", "n_wanted"), [("auto", 8, 1), ("blocks", 8, 0), ("off", 0, 0)])
def test_the_setting_says_how_previews_are_drawn(setting: str, n_lines: int, n_wanted: int) -> None:
    pictures, wanted = TerminalPictures(), []
    previews = ImagePreviews(lambda: setting, pictures, wanted.append)
    lines = previews.lines(SEA, Drawer(80, Palette()))
    assert len(lines) == previews.n_lines(SEA) == n_lines
    assert all("▀" in line.text for line in lines)
    assert len(wanted) == n_wanted
    pictures.send(SEA.digest, preview_picture(SEA), 21, 8)
    assert [PLACEHOLDER in line.text for line in previews.lines(SEA, Drawer(80, Palette()))] == [
        setting == "auto"
    ] * n_lines


def test_no_colours_or_no_room_is_no_preview() -> None:
    previews = ImagePreviews(lambda: "auto", TerminalPictures())
    assert previews.lines(SEA, Drawer(80, Palette(has_colour=False))) == []
    assert previews.lines(SEA, Drawer(20, Palette())) == []


def test_a_picture_of_a_damaged_image_is_refused() -> None:
    damaged = type(SEA)(SEA.digest, SEA.data[:3000], SEA.size, SEA.preview)
    with pytest.raises(BadImage):
        preview_picture(damaged)


def test_pictures_are_not_copied_as_text() -> None:
    shown = ["  above", f"  {placeholder_lines(7, 3, 1)[0].text}", "  below"]
    assert extracted(Selection(Offset(0, 0), None), 3, shown.__getitem__) == "above\n\nbelow"
