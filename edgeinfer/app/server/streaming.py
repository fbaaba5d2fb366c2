"""Responses: server-sent events with chunks of the answer during generation, or complete answers at the end.

In: streams of the engine, events. Out: responses; text split into content and tool calls as it arrives. In both cases
the answers stop if the client disconnects. Work done here for each token slows the model down, so chunks are sent at
intervals.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from edgeinfer.app.server.errors import APIError, told_error
from edgeinfer.app.server.objects import (
    Envelope,
    Record,
    finish_reason,
    json_line,
    notices_record,
    timings_record,
    timings_so_far,
)

if TYPE_CHECKING:
    from edgeinfer.app.server.requests import Sampling
    from edgeinfer.engine.scheduler.stats import RequestProgress, Stats
    from edgeinfer.engine.scheduler.stream import TextStream
    from edgeinfer.models.text.tools import ToolCall
    from edgeinfer.steps import Progress

T = TypeVar("T")

EVERY_S = 0.04
"""Minimum seconds between two chunks of an answer; a person sees no difference below this."""
PING_S = 5.0
"""After this many seconds without an event a comment is sent, so that proxies keep the connection open."""
LOOK_S = 0.25
"""Seconds between two checks whether a client waiting for a complete answer is still connected."""
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
NO_TURNS = nullcontext()


class Chunked(Protocol):
    """A text that arrives in parts, as `TextStream` does."""

    def chunks(self, every_s: float) -> AsyncIterator[str]: ...
    def stop(self) -> None: ...


def event(record: Record) -> bytes:
    """A record as a server-sent event."""
    return b"data: " + json_line(record) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Wire:
    """How a stream is written: an error that ends it, and what is sent in long silences (None: nothing)."""

    media_type: str
    failed: Callable[[APIError], bytes]
    ping: bytes | None


SSE = Wire("text/event-stream", lambda error: event(error.body()), PING)


async def read_all(streams: Sequence[Chunked], request: Request) -> None:
    """Generate complete answers concurrently. Raises what ended them, and APIError if the client disconnects."""
    try:
        await unless_gone(asyncio.gather(*map(_read, streams)), request, lambda: _stop(streams))
    finally:
        _stop(streams)  # if one fails, the others are not needed


async def _read(stream: Chunked) -> None:
    async for _ in stream.chunks(LOOK_S):
        pass


async def thread_done(work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result. Threads cannot be cancelled, so cancellation waits for its end."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.exception()  # retrieve the exception, or asyncio would log it
        raise


async def in_thread(
    work: Callable[[Progress], T], request: Request, turns: AbstractAsyncContextManager[object] = NO_TURNS
) -> T:
    """Run `work` in a thread and return its result; raises APIError if the client disconnects.

    The progress function that `work` is given ends it then. `turns`: held meanwhile, so that threads stay free.
    """
    gone = threading.Event()

    def go_on(*_: object) -> None:
        if gone.is_set():
            raise APIError(499, "the client has gone")

    async def in_turn() -> T:
        async with turns:
            return await thread_done(lambda: work(go_on))

    return await unless_gone(in_turn(), request, gone.set)


async def unless_gone(work: Awaitable[T], request: Request, stop: Callable[[], None]) -> T:
    """Await `work` and return its result; if the client disconnects or the server ends, stop it and raise APIError."""
    task = asyncio.ensure_future(work)
    ending = _ending(request.scope)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_S)
            if not task.done() and await request.is_disconnected():
                stop()
                raise APIError(499, "the client has gone")
            if not task.done() and ending.is_set():
                stop()
                raise _server_ends()
        return task.result()
    finally:
        if not task.done():
            stop()
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


def _ending(scope: Scope) -> asyncio.Event:
    """Set when the server ends; never for a response outside an application."""
    app = scope.get("app")
    return asyncio.Event() if app is None else app.state.server.ending


def _server_ends() -> APIError:
    return APIError(503, "the server is being ended; ask again when it is back", "server_ends")


def _stop(streams: Sequence[Chunked]) -> None:
    for stream in streams:
        stream.stop()


async def side_by_side(streams: Sequence[Chunked]) -> AsyncIterator[tuple[int, str]]:
    """Yield the text of several streams as it arrives, with the stream's index. Raises what ends any of them."""
    if len(streams) == 1:
        async for text in streams[0].chunks(EVERY_S):
            yield 0, text
        return
    parts: asyncio.Queue[tuple[int, str] | BaseException | None] = asyncio.Queue()

    async def follow(number: int) -> None:
        try:
            async for text in streams[number].chunks(EVERY_S):
                parts.put_nowait((number, text))
            parts.put_nowait(None)
        except BaseException as reason:
            parts.put_nowait(reason)

    tasks = [asyncio.create_task(follow(number)) for number in range(len(streams))]
    n_left = len(tasks)
    try:
        while n_left:
            part = await parts.get()
            if isinstance(part, tuple):
                yield part
            elif part is None:
                n_left -= 1
            else:
                raise part
    finally:
        _stop(streams)
        for task in tasks:
            task.cancel()


def streaming(events: AsyncIterator[bytes], done: Callable[[], Awaitable[None]], wire: Wire = SSE) -> EventResponse:
    """A response of events; `done` is awaited when it ends, for whatever reason."""
    return EventResponse(events, done, wire)


class EventResponse(StreamingResponse):
    """A response of events, which are closed when it ends: also if the client leaves before the first, or in one."""

    def __init__(self, events: AsyncIterator[bytes], done: Callable[[], Awaitable[None]], wire: Wire) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._pinged(), media_type=wire.media_type, headers=headers)
        self._events, self._done, self._wire = events, done, wire
        self._waiting: asyncio.Task[bytes] | None = None
        self._scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        try:
            await super().__call__(scope, receive, send)
        finally:  # not in `_pinged`: until the response ends, what is awaited there is cancelled again and again
            await self._close()

    async def _pinged(self) -> AsyncIterator[bytes]:
        """Yield events, with a ping after long silences; an exception, or the server's end, becomes the last event."""
        ending = asyncio.ensure_future(_ending(self._scope).wait())
        try:
            while True:
                self._waiting = asyncio.ensure_future(_next(self._events))
                while not self._waiting.done():
                    await asyncio.wait({self._waiting, ending}, timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
                    if ending.done():
                        raise _server_ends()
                    if not self._waiting.done() and self._wire.ping is not None:
                        yield self._wire.ping
                yield self._waiting.result()
        except StopAsyncIteration:
            pass
        except Exception as reason:
            yield self._wire.failed(told_error(reason, self._scope))
        finally:
            ending.cancel()

    async def _close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            with suppress(asyncio.CancelledError, Exception):  # also if it ended just as the client disconnected
                await self._waiting
        await self._events.aclose()  # type: ignore[attr-defined]
        await self._done()


async def _next(events: AsyncIterator[bytes]) -> bytes:
    return await anext(events)


class ContentReader:
    """Splits the text of an answer into thoughts, content and tool calls as it arrives.

    White space is dropped if only tool calls follow it.
    """

    def __init__(self, stream: TextStream) -> None:
        self._reader = stream.reader
        self._blank = ""
        self._has_content = False
        self._n_thoughts = 0

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The tool calls that are complete so far."""
        return () if self._reader is None else self._reader.calls

    def new_thoughts(self) -> str:
        """The thoughts that came since the last call."""
        thoughts = "" if self._reader is None else self._reader.thoughts.rstrip()
        new, self._n_thoughts = thoughts[self._n_thoughts :], len(thoughts)
        return new

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
        self._envelope, self._tells_timings = envelope, body.timings_per_token
        self._include_usage = body.stream_options is not None and body.stream_options.include_usage
        self._more = {"usage": None} if self._include_usage else {}

    def chunk(
        self,
        number: int,
        delta: Record,
        logprobs: Record | None = None,
        live: RequestProgress | None = None,
        progress: Record | None = None,
    ) -> bytes:
        """A chunk of the choice with index `number`; `live`: for timings, `progress`: of its prompt."""
        told: Record = {} if progress is None else {"prompt_progress": progress}
        if self._tells_timings and live is not None:
            told["timings"] = timings_so_far(live, progress)
        return self._event({"index": number, **delta, "logprobs": logprobs, "finish_reason": None}, **told)

    def last(self, number: int, delta: Record, logprobs: Record | None, stats: Stats, n_calls: int = 0) -> bytes:
        """The last chunk of a choice, with its finish reason and timings."""
        reason = finish_reason(stats, n_calls)
        choice = {"index": number, **delta, "logprobs": logprobs, "finish_reason": reason}
        return self._event(choice, timings=timings_record(stats), **notices_record([stats]))

    def end(self, usage: Record, stats: Stats) -> bytes:
        """The usage, if the request asked for it, with the timings of the first choice, and the end of the stream."""
        if not self._include_usage:
            return DONE
        return event(self._envelope.record([], is_chunk=True, usage=usage, timings=timings_record(stats))) + DONE

    def _event(self, choice: Record, **more: object) -> bytes:
        return event(self._envelope.record([choice], is_chunk=True, **self._more, **more))
