"""Progress lines of pulls, shown while any is running or paused.

In: a queue of pulls. Out: `Moved` when figures change, `Landed` when a pull ends. Polls twice a second while a pull is
active, and not at all otherwise. Starts and stops nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from textual.message import Message
from textual.widgets import Static

from edgeinfer.app.catalogue.pulling import PullQueue, PullStatus
from edgeinfer.app.catalogue.words import pull_line

METER_EVERY_S = 0.5
ENDS = ("done", "failed", "refused")


class PullLines(Static):
    """Progress of pulls."""

    DEFAULT_CSS = """
    PullLines {
        height: auto; max-height: 4; padding: 0 1; color: $text-accent; display: none; text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    """

    class Moved(Message):
        """Pulls have made progress; `statuses` by source."""

        def __init__(self, statuses: Mapping[str, PullStatus]) -> None:
            super().__init__()
            self.statuses = statuses

    class Landed(Message):
        """A pull ended, successfully or not."""

        def __init__(self, status: PullStatus) -> None:
            super().__init__()
            self.status = status

    def __init__(self, pulls: PullQueue, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._pulls = pulls
        self._ended: set[str] = set()

    def on_mount(self) -> None:
        """Create the timer, and update once."""
        self._ticks = self.set_interval(METER_EVERY_S, self.look, pause=True)
        self.look()

    def look(self) -> None:
        """Update the lines, and keep polling while a pull is active."""
        statuses = self._pulls.statuses()
        shown = [pull_line(each) for each in statuses if each.is_active or each.state == "paused"]
        self.display = bool(shown)
        self.update("\n".join(shown))
        self.post_message(self.Moved({each.source: each for each in statuses}))
        for status in statuses:
            if status.state not in ENDS:
                self._ended.discard(status.source)
            elif status.source not in self._ended:
                self._ended.add(status.source)
                self.post_message(self.Landed(status))
        if any(each.is_active for each in statuses):
            self._ticks.resume()
        else:
            self._ticks.pause()
