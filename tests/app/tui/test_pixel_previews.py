"""Previews in pixels, in terminals that answer as Kitty, a Sixel terminal and others do: what is written, and left."""

from __future__ import annotations

import base64
import importlib.util
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeinfer.app.sessions.chat import Chat
from edgeinfer.app.sessions.kept_images import kept_image
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.sessions.store import SessionStore
from tests.pictures import picture, picture_file
from tests.waiting import until

pytestmark = pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals")
ROOT = Path(__file__).parents[3]
KITTY = {"TERM": "xterm-kitty", "COLORTERM": "truecolor"}
SIZES = ("COLUMNS", "LINES")
"""Set for workers of pytest, and stronger than what a terminal says of its size."""
NOT_PASSED = (*SIZES, "TMUX", "STY", "ZELLIJ", "NO_COLOR", "TERM_PROGRAM", "XTERM_VERSION", "KONSOLE_VERSION")

if hasattr(os, "openpty"):
    from tests.app.tui.stand_in_terminal import CELL, ROWS, StandIn

Start = Callable[..., "StandIn"]


@pytest.fixture
def start(home: Path, tmp_path: Path, tiny_model: Path) -> Iterator[Start]:
    """Starts the app in terminals, and ends them; the last chat has an image above many lines."""
    opened: list[StandIn] = []
    with SessionStore(home / "chats.db") as store:
        chat = Chat(store)
        chat.ask("What is this?", [Attachment("sea.png", "", kept_image(picture(640, 480), "sea.png"))], None)
        answer = chat.branch[-1]
        chat.finish(answer.number, "\n\n".join(f"line {number}" for number in range(40)), "whole", None)
    picture_file(tmp_path / "sky.png", 300, 150)
    picture_file(tmp_path / "tower.png", 100, 300)

    def begin(environment: dict[str, str], name: str = "", features: str = "62;22", *arguments: str) -> StandIn:
        terminal = StandIn(name, features)
        opened.append(terminal)
        kept = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        places = {"EDGEINFER_HOME": str(home), "PYTHONPATH": paths}
        command = [sys.executable, "-m", "edgeinfer", "chat", "-m", str(tiny_model), "--device", "reference", "-c"]
        terminal.start([*command, *arguments], {**kept, **places, **environment})
        terminal.wait_for("line 39")
        return terminal

    yield begin
    for terminal in opened:
        terminal.close()


def to_the_image(terminal: StandIn) -> None:
    for _ in range(8):
        terminal.type("\x1b[5~")  # page up
    terminal.wait_for("image: sea.png")


def attach_and_view(terminal: StandIn, path: Path) -> None:
    terminal.type(f"/attach {path}\r")
    terminal.wait_for(f"+ {path.name}")
    terminal.type("\x1b[Z")  # Shift+Tab
    chosen = re.compile(rf"\x1b\[7;[\d;]*m\+ {path.name}")
    until(lambda: chosen.search(terminal.written))
    terminal.type("\r")


def leave(terminal: StandIn) -> None:
    terminal.type("\x11")  # Ctrl+Q
    until(lambda: terminal.is_over and not terminal.is_other_screen)


def test_kitty_shows_a_preview_that_scrolls_as_text(start: Start) -> None:
    terminal = start(KITTY, "kitty(0.36.4)")
    assert terminal.asked == ["name", "cell", "features"]
    assert terminal.shown() == {}
    to_the_image(terminal)
    until(lambda: terminal.shown() and "▀" not in terminal.text)
    ((number, cells),) = terminal.shown().items()
    assert cells == {(row, column) for row in range(8) for column in range(21)}
    keys, data = terminal.pictures[number]
    assert (keys["U"], keys["c"], keys["r"]) == ("1", "21", "8")
    size = int(keys["s"]), int(keys["v"])
    assert size == (252, 189)  # 640 x 480 within 21 x 8 cells of 12 x 24 pixels
    rgb = zlib.decompress(base64.b64decode(data))
    assert len(rgb) == 3 * size[0] * size[1]
    middle_of_sun = 3 * (round(0.3 * size[1]) * size[0] + round(0.7 * size[0]))
    assert tuple(rgb[middle_of_sun : middle_of_sun + 3]) == (230, 60, 40)
    terminal.type("\x1b[6~")  # page down
    until(lambda: not terminal.shown())
    to_the_image(terminal)
    until(terminal.shown)
    assert terminal.n_received == 1  # and not sent again
    leave(terminal)
    assert terminal.pictures == {}


def test_pictures_come_back_after_another_program_had_the_terminal(start: Start) -> None:
    terminal = start({**KITTY, "EDITOR": "true"}, "kitty(0.36.4)")
    to_the_image(terminal)
    until(terminal.shown)
    terminal.type("\x07")  # Ctrl+G
    until(lambda: terminal.n_received == 2)
    until(lambda: terminal.shown() and set(terminal.shown()) == set(terminal.pictures))
    leave(terminal)


def test_an_image_of_the_draft_is_shown_alone_in_pixels(start: Start, tmp_path: Path) -> None:
    terminal = start(KITTY, "ghostty 1.2.0")
    attach_and_view(terminal, tmp_path / "sky.png")
    whole = {(row, column) for row in range(25) for column in range(100)}
    until(lambda: list(terminal.shown().values()) == [whole])  # twice as wide as high, of cells of 8 x 16 pixels
    (number,) = terminal.shown()
    assert int(terminal.pictures[number][0]["s"]) == 800
    terminal.type("q")
    terminal.wait_for("line 39")
    until(lambda: not terminal.pictures)
    leave(terminal)


@pytest.mark.skipif(importlib.util.find_spec("textual_image") is None, reason="textual-image is not installed")
def test_sixel_is_for_an_image_alone(start: Start, tmp_path: Path) -> None:
    terminal = start({"TERM": "foot", "COLORTERM": "truecolor"}, "foot(1.20.0)", "62;4;22")
    to_the_image(terminal)
    assert terminal.text.count("▀") == 21 * 8
    assert terminal.sixels == []
    attach_and_view(terminal, tmp_path / "sky.png")
    until(lambda: terminal.sixels)
    assert '"1;1;800;400' in terminal.sixels[0]
    assert terminal.asked == ["name", "cell", "features"]  # the package has not asked
    terminal.type("q")
    terminal.wait_for("Ask anything")  # no answer came as keys
    assert terminal.text.count("▀") == 21 * 8
    leave(terminal)


@pytest.mark.skipif(importlib.util.find_spec("textual_image") is None, reason="textual-image is not installed")
def test_sixel_leaves_room_below_as_terminals_would_scroll(start: Start, tmp_path: Path) -> None:
    terminal = start({"TERM": "foot", "COLORTERM": "truecolor"}, "foot(1.20.0)", "62;4;22")
    attach_and_view(terminal, tmp_path / "tower.png")
    until(lambda: terminal.sixels)
    raster = re.search(r'"1;1;(\d+);(\d+)', terminal.sixels[-1])
    assert raster is not None
    bands = -(-int(raster[2]) // 6) * 6
    assert bands <= (ROWS - 3) * CELL[1]  # below the title; then the line to which the cursor goes, and the keys
    leave(terminal)


@pytest.mark.parametrize(
    ("environment", "name", "is_asked"),
    [
        ({"TERM": "xterm-256color"}, "kitty(0.36.4)", False),
        ({**KITTY, "TMUX": "/tmp/tmux,1,0"}, "kitty(0.36.4)", False),
        ({**KITTY, "EDGEINFER_PREVIEWS": "blocks"}, "kitty(0.36.4)", False),
        (KITTY, "kitty(0.26.5)", True),
        (KITTY, "", True),
        ({"TERM": "xterm-kitty", "COLORTERM": ""}, "kitty(0.36.4)", True),
    ],
    ids=["another name", "tmux", "setting", "old kitty", "nameless", "few colours"],
)
def test_elsewhere_previews_are_half_blocks(
    start: Start, environment: dict[str, str], name: str, is_asked: bool
) -> None:
    terminal = start(environment, name)
    to_the_image(terminal)
    assert terminal.text.count("▀") == 21 * 8
    assert bool(terminal.asked) == is_asked
    leave(terminal)
    assert terminal.n_received == 0
    assert terminal.sixels == []


def test_previews_can_be_off(start: Start) -> None:
    terminal = start({**KITTY, "EDGEINFER_PREVIEWS": "off"}, "kitty(0.36.4)")
    to_the_image(terminal)
    assert "▀" not in terminal.text
    assert terminal.asked == []
    leave(terminal)
    assert terminal.n_received == 0
