"""What is known of a sequence whose keys and values another process has: enough to read it again in the next one.

In: text as it is read, a saved state. Out: the same. Knows no processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeinfer.engine.kv.read_text import ReadText


@dataclass(slots=True)
class KnownSequence:
    """What a sequence consists of: a saved state that it began with, if any, and what was read after that.

    `there`: its number in the process, None where the process does not have it.
    """

    there: int | None = None
    state: bytes = b""
    n_state: int = 0
    text: ReadText = field(default_factory=ReadText)

    @property
    def n_cached(self) -> int:
        return self.n_state + len(self.text)

    def truncate(self, n_cached: int) -> None:
        """Forget what is after so many tokens; what of the saved state is kept counts as it is."""
        self.text.cut(max(0, n_cached - self.n_state))
        if not n_cached:
            self.state = b""
        self.n_state = min(self.n_state, n_cached)
