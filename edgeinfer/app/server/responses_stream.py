"""The numbered events of a streamed response, in OpenAI's order: items begin, grow, and are done.

In: thoughts, content and finished items, as they come. Out: server-sent events. Knows no models and no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.responses_objects import ResponseObject, text_part
from edgeinfer.app.server.streaming import event


class ResponseEvents:
    """Writes the events of one response: thoughts come first, then content, then calls."""

    def __init__(self, frame: ResponseObject) -> None:
        self._frame = frame
        self._number = 0
        self._is_thinking = self._is_talking = False
        self.thoughts = self.content = ""
        self._n_done = 0
        """Items whose events have all been sent."""

    def event(self, kind: str, **more: object) -> bytes:
        """An event with the next number."""
        record = {"type": kind, "sequence_number": self._number, **more}
        self._number += 1
        return f"event: {kind}\n".encode() + event(record)

    def begin(self) -> Iterator[bytes]:
        """Yield the events that start the response."""
        for kind in ("response.created", "response.in_progress"):
            yield self.event(kind, response=self._frame.record("in_progress"))

    def think(self, more: str) -> Iterator[bytes]:
        """Add to the thoughts; the first of them start the reasoning item."""
        if more and not self._is_talking:
            if not self._is_thinking:
                self._is_thinking = True
                yield self._added(self._frame.reasoning("", "in_progress"))
                yield self._part("added", "")
            self.thoughts += more
            yield self.event(f"response.{self._thought}.delta", **self._thought_place, delta=more)

    def say(self, more: str) -> Iterator[bytes]:
        """Add content to the message; the first content starts it, and ends the thoughts."""
        if more:
            if self._is_thinking:
                yield from self._thought_done(self._frame.reasoning(self.thoughts))
            yield from self._begin_message()
            self.content += more
            yield self.event("response.output_text.delta", **self._message_place, delta=more, logprobs=[])

    def finish(self, output: list[Record]) -> Iterator[bytes]:
        """Yield the remaining events of all output items."""
        for item in output[self._n_done :]:
            if item["type"] == "reasoning":
                yield from self._thought_done(item)
            elif item["type"] == "message":
                yield from self._message_done(item)
            else:
                yield from self._call(item)

    def _added(self, item: Record) -> bytes:
        return self.event("response.output_item.added", output_index=self._n_done, item=item)

    def _done(self, item: Record) -> bytes:
        self._n_done += 1
        return self.event("response.output_item.done", output_index=self._n_done - 1, item=item)

    @property
    def _thought(self) -> str:
        return "reasoning_summary_text" if self._frame.summarises else "reasoning_text"

    @property
    def _thought_place(self) -> Record:
        part = "summary_index" if self._frame.summarises else "content_index"
        return {"item_id": f"rs_{self._frame.identity}", "output_index": 0, part: 0}

    def _part(self, what: str, text: str) -> bytes:
        kind = "reasoning_summary_part" if self._frame.summarises else "content_part"
        return self.event(f"response.{kind}.{what}", **self._thought_place, part=self._frame.thought_part(text))

    def _thought_done(self, item: Record) -> Iterator[bytes]:
        self._is_thinking = False
        yield self.event(f"response.{self._thought}.done", **self._thought_place, text=self.thoughts)
        yield self._part("done", self.thoughts)
        yield self._done(item)

    @property
    def _message_place(self) -> Record:
        return {"item_id": f"msg_{self._frame.identity}", "output_index": self._n_done, "content_index": 0}

    def _begin_message(self) -> Iterator[bytes]:
        if not self._is_talking:
            self._is_talking = True
            yield self._added(self._frame.message("", "in_progress"))
            yield self.event("response.content_part.added", **self._message_place, part=text_part(""))

    def _message_done(self, item: Record) -> Iterator[bytes]:
        yield from self._begin_message()
        yield self.event("response.output_text.done", **self._message_place, text=self.content, logprobs=[])
        yield self.event("response.content_part.done", **self._message_place, part=text_part(self.content))
        yield self._done(item)

    def _call(self, item: Record) -> Iterator[bytes]:
        """All events of a tool call, which always arrives complete."""
        arguments, place = item["arguments"], {"item_id": item["id"], "output_index": self._n_done}
        yield self._added({**item, "arguments": "", "status": "in_progress"})
        yield self.event("response.function_call_arguments.delta", delta=arguments, **place)
        yield self.event("response.function_call_arguments.done", arguments=arguments, name=item["name"], **place)
        yield self._done(item)
