"""Anthropic's response objects: messages with blocks of content, whole, and as the events of a stream.

In: streams of the engine, thoughts, content and calls as they arrive. Out: records, and events as bytes. Knows no
HTTP and no requests but what they ask to be shown.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.streaming import ContentReader, Wire, event

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.models.text.tools import ToolCall

SIGNATURE = "edgeinfer"
"""The signature of thoughts: some clients only send back thoughts that have one. Nothing is checked by it."""


def anthropic_event(kind: str, **fields: object) -> bytes:
    """A server-sent event as Anthropic's clients read it."""
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})


PING = anthropic_event("ping")
ANTHROPIC = Wire(
    "text/event-stream",
    lambda error: b"event: error\ndata: " + json.dumps(error.anthropic_body()).encode() + b"\n\n",
    PING,
)


def usage_of(stats: Stats) -> Record:
    """The usage of an answer; tokens of the prompt that were read before are counted apart."""
    return {
        "input_tokens": stats.n_prompt - stats.n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.n_cached,
        "output_tokens": stats.n_generated,
    }


def ending(stream: TextStream, stats: Stats, stops: Sequence[str], n_calls: int) -> Record:
    """Why an answer ended. `stops`: the stop sequences that the request named."""
    if stats.finish_reason == "length":
        reason = "model_context_window_exceeded" if stats.truncated else "max_tokens"
    elif n_calls:
        reason = "tool_use"
    elif stream.stop_string in stops:
        return {"stop_reason": "stop_sequence", "stop_sequence": stream.stop_string}
    else:
        reason = "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def message_record(model: str, content: Sequence[Record], usage: Record, end: Record | None = None) -> Record:
    """A message; without `end` it has only begun."""
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(content),
        **(end or {"stop_reason": None, "stop_sequence": None}),
        "usage": usage,
    }


def blocks_of(thoughts: str, content: str, calls: Sequence[ToolCall], *, shows_thoughts: bool) -> list[Record]:
    """The blocks of a whole answer; one that has nothing else has an empty text."""
    blocks: list[Record] = []
    if thoughts:
        blocks.append({"type": "thinking", "thinking": thoughts if shows_thoughts else "", "signature": SIGNATURE})
    if content or not (thoughts or calls):
        blocks.append({"type": "text", "text": content})
    return blocks + [{**_begun_call(call), "input": json.loads(call.arguments)} for call in calls]


def _begun_call(call: ToolCall) -> Record:
    return {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": call.name, "input": {}}


_BEGUN: dict[str, Record] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


class BlockEvents:
    """Turns the text of an answer into the events of its blocks as it arrives."""

    def __init__(self, stream: TextStream, *, shows_thoughts: bool) -> None:
        self._reader, self._shows_thoughts = ContentReader(stream), shows_thoughts
        self._index, self._kind = -1, ""
        self.n_calls = 0
        """The calls so far."""

    def more(self, text: str) -> Iterator[bytes]:
        """Add text and yield the events that are certain by now."""
        return self._deltas(self._reader.push(text))

    def end(self) -> Iterator[bytes]:
        """Yield the events of what was held back; there is at least one block."""
        yield from self._deltas(self._reader.finish())
        if self._index < 0:
            yield from self._within("text")
        yield from self._stop()

    def _deltas(self, content: str) -> Iterator[bytes]:
        if thoughts := self._reader.new_thoughts():
            yield from self._within("thinking")
            if self._shows_thoughts:
                yield self._delta("thinking_delta", thinking=thoughts)
        if content:
            yield from self._within("text")
            yield self._delta("text_delta", text=content)
        for call in self._reader.calls[self.n_calls :]:
            self.n_calls += 1
            yield from self._start("tool_use", _begun_call(call))
            yield self._delta("input_json_delta", partial_json=call.arguments)

    def _within(self, kind: str) -> Iterator[bytes]:
        """Start a block of this kind, unless the last one is of it."""
        if self._kind != kind:
            yield from self._start(kind, _BEGUN[kind])

    def _start(self, kind: str, block: Record) -> Iterator[bytes]:
        yield from self._stop()
        self._index, self._kind = self._index + 1, kind
        yield anthropic_event("content_block_start", index=self._index, content_block=block)

    def _stop(self) -> Iterator[bytes]:
        """End the last block, if it has not ended."""
        if self._kind == "thinking":
            yield self._delta("signature_delta", signature=SIGNATURE)
        if self._kind:
            yield anthropic_event("content_block_stop", index=self._index)
        self._kind = ""

    def _delta(self, kind: str, **fields: object) -> bytes:
        return anthropic_event("content_block_delta", index=self._index, delta={"type": kind, **fields})
