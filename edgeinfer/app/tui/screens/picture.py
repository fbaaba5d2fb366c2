"""The picture screen: one image, as large as the terminal has room for.

In: an attached image, how the terminal draws pixels. Out: nothing. The image is decoded in a thread, for each size of
the terminal again. Nothing scrolls here, so Sixel, which paints over cells, has its place.
"""

from __future__ import annotations

from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Footer, Static

from edgeinfer.app.sessions.kept_images import KeptImage, Preview
from edgeinfer.app.tui.graphics.image_previews import TerminalPictures
from edgeinfer.app.tui.graphics.kitty import MOST_CELLS, placeholder_lines
from edgeinfer.app.tui.graphics.pixel_terminal import PixelTerminal
from edgeinfer.app.tui.text.neutral import neutral
from edgeinfer.app.tui.text.previews import preview_lines
from edgeinfer.errors import EdgeInferError

MOST_PIXELS = 1024
"""Largest width and height of a picture that is sent; the terminal enlarges it."""
BLOCK_CELL = (1, 2)
"""Width and height of a cell in half blocks."""
BARS = 2
"""Lines of the title and of the keys."""
SIXEL_ROWS = 2
"""Rows of cells that are left free below a Sixel picture: it ends with a whole band of six pixels, after which the
cursor goes to the next line, and a terminal scrolls if there is none."""
NAME = "picture screen"


class PictureLines(Widget):
    """Lines that were drawn already."""

    def __init__(self, lines: list[Strip], columns: int) -> None:
        super().__init__()
        self._lines = lines
        self.styles.width, self.styles.height = columns, len(lines)

    def render_line(self, y: int) -> Strip:
        return self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width)


class PictureScreen(Screen[None]):
    """Shows an image until Escape is pressed."""

    DEFAULT_CSS = """
    PictureScreen #picture-title { height: 1; padding: 0 1; background: $panel; color: $text; text-wrap: nowrap; }
    PictureScreen #picture-place { height: 1fr; align: center middle; overflow: hidden; }
    PictureScreen #picture-place Static { width: auto; height: auto; max-width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "leave", "back", id="picture.back")]

    class Decoded(Message):
        """The image is decoded for a room in cells; or the reason why it cannot be."""

        def __init__(self, room: tuple[int, int], picture: Preview | str) -> None:
            super().__init__()
            self.room = room
            self.picture = picture

    def __init__(self, title: str, image: KeptImage, terminal: PixelTerminal, pictures: TerminalPictures) -> None:
        """`terminal`: how pixels are drawn, if at all; `pictures`: those that it has by Kitty's protocol."""
        super().__init__()
        self._heading = title
        self._image = image
        self._terminal = terminal
        self._pictures = pictures
        self._room = (0, 0)

    def compose(self) -> ComposeResult:
        yield Static(neutral(self._heading), id="picture-title", markup=False)
        yield Container(id="picture-place")
        yield Footer()

    def on_resize(self, event: Resize) -> None:
        """Decode the image for the room that there is."""
        free = SIXEL_ROWS if self._terminal.protocol == "sixel" else 0
        room = max(1, event.size.width), max(1, event.size.height - BARS - free)
        if room != self._room:
            self._room = room
            self._decode(room)

    def on_unmount(self) -> None:
        self._write(self._pictures.delete(NAME))

    def action_leave(self) -> None:
        """Close the screen."""
        self.dismiss(None)

    @property
    def _cell(self) -> tuple[int, int]:
        return BLOCK_CELL if self._terminal.protocol == "none" else self._terminal.cell

    @work(thread=True, group="picture")
    def _decode(self, room: tuple[int, int]) -> None:
        most = min(MOST_PIXELS, room[0] * self._cell[0]), min(MOST_PIXELS, room[1] * self._cell[1])
        try:
            picture: Preview | str = self._image.picture(most)
            if self._terminal.protocol == "sixel":
                from edgeinfer.app.tui.graphics.sixel import prepare_sixel

                prepare_sixel(self._terminal.cell)
        except EdgeInferError as error:
            picture = str(error)
        self.post_message(self.Decoded(room, picture))

    @on(Decoded)
    async def _show(self, decoded: Decoded) -> None:
        decoded.stop()
        if decoded.room != self._room:
            return
        place = self.query_one("#picture-place", Container)
        await place.remove_children()
        await place.mount(self._drawn(decoded.picture))

    def _drawn(self, picture: Preview | str) -> Widget:
        """The widget that shows a picture."""
        if isinstance(picture, str):
            return Static(neutral(picture), markup=False)
        if self.app.no_color:
            return Static("an image is not drawn without colours", markup=False)
        columns, rows = fitted(picture, self._room, self._cell)
        if self._terminal.protocol == "sixel":
            from edgeinfer.app.tui.graphics.sixel import sixel_widget

            return sixel_widget(picture, columns, rows)
        if self._terminal.protocol == "none":
            return PictureLines(preview_lines(picture, columns), columns)
        self._write(self._pictures.send(NAME, picture, columns, rows))
        number = self._pictures.number(NAME)
        assert number is not None
        return PictureLines(placeholder_lines(number, columns, rows), columns)

    def _write(self, text: str) -> None:
        if text and self.app._driver is not None:
            self.app._driver.write(text)


def fitted(picture: Preview, room: tuple[int, int], cell: tuple[int, int]) -> tuple[int, int]:
    """Columns and rows of the largest rectangle of cells in a room that has a picture's shape."""
    most = min(room[0], MOST_CELLS), min(room[1], MOST_CELLS)
    scale = min(most[0] * cell[0] / picture.width, most[1] * cell[1] / picture.height)
    columns, rows = round(picture.width * scale / cell[0]), round(picture.height * scale / cell[1])
    return max(1, min(columns, most[0])), max(1, min(rows, most[1]))
