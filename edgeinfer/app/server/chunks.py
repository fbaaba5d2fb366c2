"""Streaming answers: splits text into content and tool calls as it arrives, and writes the chunk objects.

In: text from the engine. Out: content, tool calls, server-sent events. Sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeinfer.app.server.objects import Envelope, Record, finish_reason, timings_record
from edgeinfer.app.server.sse import DONE, event

if TYPE_CHECKING:
    from edgeinfer.app.server.schemas import Sampling
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.models.text.tools import ToolCall


class ContentReader:
    """Splits the text of an answer into content and tool calls as it arrives.

    White space is dropped if only tool calls follow it.
    """

    def __init__(self, stream: TextStream) -> None:
        self._reader = stream.reader
        self._blank = ""
        self._has_content = False

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The tool calls that are complete so far."""
        return () if self._reader is None else self._reader.calls

    def push(self, text: str) -> str:
        """Add text and return the content that is certain by now."""
        return text if self._reader is None else self._content(self._reader.push(text))

    def finish(self) -> str:
        """End the text and return the content that was held back."""
        return "" if self._reader is None else self._content(self._reader.finish(), is_last=True)

    def _content(self, more: str, *, is_last: bool = False) -> str:
        content = self._blank + more
        self._has_content = self._has_content or bool(content.strip()) or (is_last and not self.calls)
        self._blank = "" if self._has_content else content
        return content if self._has_content else ""


class ChunkWriter:
    """Writes the chunks of one response as events. `delta`: the new fields of a choice."""

    def __init__(self, body: Sampling, envelope: Envelope) -> None:
        self._envelope = envelope
        self._include_usage = body.stream_options is not None and body.stream_options.include_usage
        self._more = {"usage": None} if self._include_usage else {}

    def chunk(self, number: int, delta: Record, logprobs: Record | None = None) -> bytes:
        """A chunk of the choice with index `number`."""
        return self._event({"index": number, **delta, "logprobs": logprobs, "finish_reason": None})

    def last(self, number: int, delta: Record, logprobs: Record | None, stats: Stats, n_calls: int = 0) -> bytes:
        """The last chunk of a choice, with its finish reason and timings."""
        reason = finish_reason(stats, n_calls)
        choice = {"index": number, **delta, "logprobs": logprobs, "finish_reason": reason}
        return self._event(choice, timings=timings_record(stats))

    def end(self, usage: Record) -> bytes:
        """The usage, if the request asked for it, and the end of the stream."""
        if not self._include_usage:
            return DONE
        return event(self._envelope.record([], is_chunk=True, usage=usage)) + DONE

    def _event(self, choice: Record, **more: object) -> bytes:
        return event(self._envelope.record([choice], is_chunk=True, **self._more, **more))
