"""Shows images: previews among the messages, in pixels where the terminal draws them, and one image alone.

In: the images of messages and of the draft. Out: what is written to the terminal, through Textual's driver, so that it
comes between whole updates of the screen. Images are decoded in a thread, one after the other; until then, and where
that fails, previews are blocks.
"""

from __future__ import annotations

from textual import on, work
from textual.message import Message

from edgeinfer.app.sessions.kept_images import KeptImage, Preview
from edgeinfer.app.sessions.records import Attachment
from edgeinfer.app.tui.app_state import AppState
from edgeinfer.app.tui.graphics.image_previews import ImagePreviews, TerminalPictures, preview_cells, preview_picture
from edgeinfer.app.tui.graphics.pixel_terminal import PixelTerminal
from edgeinfer.app.tui.screens.chat_parts import ChatParts
from edgeinfer.app.tui.widgets.chips import Chips
from edgeinfer.app.tui.widgets.entries import QuestionEntry
from edgeinfer.errors import EdgeInferError


class PicturingActions(ChatParts):
    """Mixin of the chat screen: images."""

    class Pictured(Message):
        """An image is decoded; None if it cannot be."""

        def __init__(self, image: KeptImage, picture: Preview | None) -> None:
            super().__init__()
            self.image = image
            self.picture = picture

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._pictures = TerminalPictures()
        self._wanted: dict[str, KeptImage] = {}
        """Images to decode, the first of which is being decoded."""
        self._undecodable: set[str] = set()
        self.previews = ImagePreviews()

    def begin_picturing(self) -> None:
        """Find out what the terminal draws; its colours are known from now on."""
        is_true = self.app.console.color_system == "truecolor" and not self.app.no_color
        has_placeholders = self.state.terminal.protocol == "kitty" and is_true
        self.previews = ImagePreviews(
            lambda: self.state.tuning.settings.face.previews,
            self._pictures if has_placeholders else None,
            self._want,
            self.view,
        )
        for signal in (self.app.app_suspend_signal, self.app.app_resume_signal):
            signal.subscribe(self, lambda _: self._forget_pictures(), immediate=True)

    def redraw_previews(self) -> None:
        """Draw previews again, as the setting is now."""
        for entry in self.transcript.entries:
            if isinstance(entry, QuestionEntry):
                entry.redraw_media()

    def delete_pictures(self) -> None:
        """Delete all pictures from the terminal's memory."""
        self._write(self._pictures.clear())

    def view(self, attachment: Attachment) -> None:
        """Show an attached image alone."""
        from edgeinfer.app.tui.screens.picture import PictureScreen

        image, terminal = attachment.image, self.state.terminal
        if image is None:
            return
        is_plain = self.state.tuning.settings.face.previews != "auto"
        if is_plain or (terminal.protocol == "kitty" and self.app.console.color_system != "truecolor"):
            terminal = PixelTerminal()
        title = f"{attachment.name}, {image.pixels_text}"
        self.app.push_screen(PictureScreen(title, image, terminal, self._pictures))

    @on(Chips.Viewed)
    def _view_attached(self, event: Chips.Viewed) -> None:
        event.stop()
        self.view(event.attachment)

    def _forget_pictures(self) -> None:
        """The app leaves the terminal, or is back: the terminal has lost all pictures, or does so now."""
        self.delete_pictures()
        self.redraw_previews()

    def _want(self, image: KeptImage) -> None:
        if image.digest in self._wanted or image.digest in self._undecodable:
            return
        self._wanted[image.digest] = image
        if len(self._wanted) == 1:
            self._picture(image)

    @work(thread=True, group="pictures")
    def _picture(self, image: KeptImage) -> None:
        try:
            picture = preview_picture(image)
        except EdgeInferError:
            picture = None
        self.post_message(self.Pictured(image, picture))

    @on(Pictured)
    def _take_picture(self, event: Pictured) -> None:
        event.stop()
        image = self._wanted.pop(event.image.digest)
        if event.picture is None:
            self._undecodable.add(image.digest)
        else:
            self._write(self._pictures.send(image.digest, event.picture, *preview_cells(image)))
            self.redraw_previews()
        following = next(iter(self._wanted.values()), None)
        if following is not None:
            self._picture(following)

    def _write(self, text: str) -> None:
        if text and self.app._driver is not None:
            self.app._driver.write(text)
