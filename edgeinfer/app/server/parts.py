"""The events of answers that are sent in parts, as chats and completions have them in common.

In: what is said of an answer, and its number among those to one request. Out: events. Knows no streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.app.server.answers import Envelope, Record, finish_reason, timings_of
from edgeinfer.app.server.sending import DONE, event

if TYPE_CHECKING:
    from edgeinfer.app.server.asked import Sampling
    from edgeinfer.engine.scheduler.stats import Stats


class EventWriter:
    """Makes the events of one response."""

    def __init__(self, asked: Sampling, envelope: Envelope) -> None:
        self._envelope = envelope
        self._wants_usage = asked.stream_options is not None and asked.stream_options.include_usage
        self._more = {"usage": None} if self._wants_usage else {}

    def part(self, number: int, said: Record, logprobs: Record | None = None) -> bytes:
        """More of an answer."""
        return self._event({"index": number, **said, "logprobs": logprobs, "finish_reason": None})

    def last(self, number: int, said: Record, logprobs: Record | None, stats: Stats, n_calls: int = 0) -> bytes:
        """Why an answer ended, and what was not told before."""
        reason = finish_reason(stats, n_calls)
        choice = {"index": number, **said, "logprobs": logprobs, "finish_reason": reason}
        return self._event(choice, timings=timings_of(stats))

    def end(self, usage: Record) -> bytes:
        """What all answers took, if that is wanted, and the end."""
        if not self._wants_usage:
            return DONE
        return event(self._envelope.record([], is_part=True, usage=usage)) + DONE

    def _event(self, choice: Record, **more: object) -> bytes:
        return event(self._envelope.record([choice], is_part=True, **self._more, **more))
