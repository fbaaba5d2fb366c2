"""Previews of images in the transcript: placeholder cells where the terminal has the picture, else half blocks.

In: images, the setting, a `Drawer`. Out: strips; and wishes for pictures that the terminal should get, until when there
are blocks. `TerminalPictures` knows which pictures the terminal has, and writes nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.strip import Strip

from edgeinfer.app.sessions.kept_images import KeptImage, Preview
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.graphics.kitty import deleted, picture_number, placeholder_lines, sent
from edgeinfer.app.tui.text.drawing import Drawer
from edgeinfer.app.tui.text.previews import n_preview_lines, preview_lines

MOST_PICTURES = 200
"""Pictures in the terminal's memory, of some 0.2 MB each."""
SHARPNESS = (12, 24)
"""Pixels of a preview's picture for each cell; the terminal fits them to its own."""


class TerminalPictures:
    """The pictures that a terminal has by Kitty's protocol, each under a name. Methods return what is to be written."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._n_sent = 0

    def number(self, name: str) -> int | None:
        """The number of a picture, or None if the terminal does not have it."""
        return self._numbers.get(name)

    def send(self, name: str, picture: Preview, columns: int, rows: int) -> str:
        """Send a picture, in place of the oldest if there are too many."""
        number = picture_number(self._n_sent)
        self._n_sent += 1
        before = self.delete(name)
        if len(self._numbers) >= MOST_PICTURES:
            before += self.delete(next(iter(self._numbers)))
        self._numbers[name] = number
        return before + sent(picture, number, columns, rows)

    def delete(self, name: str) -> str:
        """Delete a picture, if the terminal has it."""
        number = self._numbers.pop(name, None)
        return "" if number is None else deleted(number)

    def clear(self) -> str:
        """Delete all."""
        return "".join([self.delete(name) for name in list(self._numbers)])


def _ignore(image: KeptImage) -> None:
    """Nothing can be fetched."""


def _no_view(attachment: Attachment) -> None:
    """Nothing shows images alone."""


class ImagePreviews:
    """Draws previews of images."""

    def __init__(
        self,
        setting: Callable[[], str] = lambda: "auto",
        pictures: TerminalPictures | None = None,
        want: Callable[[KeptImage], None] = _ignore,
        view: Callable[[Attachment], None] = _no_view,
    ) -> None:
        """`setting`: auto, blocks or off; `pictures`: those of a terminal that has placeholders.

        `want` is called with an image whose picture the terminal should get, every time that it is drawn without;
        `view` with an attachment that is to be shown alone.
        """
        self._setting = setting
        self._pictures = pictures
        self._want = want
        self.view = view

    def n_lines(self, image: KeptImage) -> int:
        """The number of lines of a preview."""
        return 0 if self._setting() == "off" else n_preview_lines(image.preview)

    def lines(self, image: KeptImage, drawer: Drawer) -> list[Strip]:
        """The lines of a preview; none without colours, without room, or if the setting says so."""
        setting, preview = self._setting(), image.preview
        if setting == "off" or not drawer.palette.has_colour or preview.width > drawer.width:
            return []
        if setting == "auto" and self._pictures is not None and preview.width:
            number = self._pictures.number(image.digest)
            if number is not None:
                return placeholder_lines(number, *preview_cells(image))
            self._want(image)
        return preview_lines(preview, drawer.width)


def preview_cells(image: KeptImage) -> tuple[int, int]:
    """Columns and rows of an image's preview."""
    return image.preview.width, n_preview_lines(image.preview)


def preview_picture(image: KeptImage) -> Preview:
    """The picture of a preview for the terminal. Decodes the image. Raises BadImage, BadSetting."""
    columns, rows = preview_cells(image)
    return image.picture((columns * SHARPNESS[0], rows * SHARPNESS[1]))
