"""Questions that wait while an answer is written: shown, taken back, asked when it is over.

In: what is sent while the model is busy. Out: the same, later, or back in the composer.
"""

from __future__ import annotations

from edgeinfer.app.tui.screens.chat_parts import ChatParts, Prompted
from edgeinfer.app.tui.widgets.composer import Composer


class Queueing(ChatParts):
    """Part of the chat screen."""

    def queue(self, prompted: Prompted) -> None:
        """Let a question wait."""
        self.prompted.append(prompted)
        self.show_prompted()

    def show_prompted(self) -> None:
        """Show what waits, and what sends it."""
        self.composer.queued([prompted.text for prompted in self.prompted], is_held=self.writing is None)

    def on_composer_take_back(self, event: Composer.TakeBack) -> None:
        """The last question is wanted back."""
        event.stop()
        self.action_unqueue()

    def action_unqueue(self, argument: str = "") -> None:
        """Put the last question that waits back into the composer."""
        if not self.prompted:
            self.tell("no question waits")
            return
        prompted = self.prompted.pop()
        self.show_prompted()
        self.composer.put(prompted.text, prompted.attachments)
