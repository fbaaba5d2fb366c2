"""What becomes of pastes that are not simply inserted: long texts and dropped images and sounds become attachments.

In: messages of the draft. Out: attachments, or the pasted text itself if it is pasted again.
"""

from __future__ import annotations

from textual import on

from edgeinfer.app.chat.enclosures import Enclosure
from edgeinfer.app.tui.widgets.sending import Sending
from edgeinfer.app.tui.widgets.text_fields import DraftInput


class Pasting(Sending):
    """Mixin of the composer: pastes."""

    _last_paste: Enclosure | None = None

    @on(DraftInput.LongPaste)
    def _take_long_paste(self, paste: DraftInput.LongPaste) -> None:
        paste.stop()
        if self._last_paste is not None and self._last_paste.attachments[0].text == paste.text:
            item, self._last_paste = self._last_paste, None
            self._chips.remove_item(item)
            self._draft.type(paste.text)
            return
        self._last_paste = self._chips.add_pasted(paste.text)
        self.notify("pasted as an attachment; paste again to have it in the text", markup=False)

    @on(DraftInput.FilePaste)
    def _take_file_paste(self, paste: DraftInput.FilePaste) -> None:
        """Attach dropped images and sounds; those that are attached already are wanted as a path in the text."""
        paste.stop()
        missing = [path for path in paste.paths if not self._chips.holds(path)]
        for path in missing:
            self._chips.attach(path)
        if not missing:
            self._draft.type(paste.text)
