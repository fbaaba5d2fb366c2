"""Stop strings in a stream of text: nothing of a stop string is ever let through.

In: pieces of text as they are generated. Out: the text that can be shown, held back while its end could still become
a stop string. Does not know tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeinfer.errors import BadSetting
from edgeinfer.models.text.overlap import overlap


class StopStrings:
    """Watches for `stops`; `matched` is the one that was found, after which nothing more is let through."""

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not isinstance(stop, str):
                raise BadSetting(f"a stop string cannot be {stop!r}: it must be text")
            if not stop:
                raise BadSetting("a stop string cannot be empty")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that is now certain not to belong to a stop string."""
        if self.matched is not None:
            return ""
        self._held += text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, _, self.matched = min(found)
            shown, self._held = self._held[:at], ""
            return shown
        n_held = max((overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - n_held
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """What was held back when the text ends without a stop string."""
        shown, self._held = self._held, ""
        return shown
