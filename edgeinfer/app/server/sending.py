"""Sending answers: whole when they are done, or as server-sent events while they are made.

In: streams of the engine, what makes records of their parts. Out: responses. A client that goes away ends its answers
in both forms. Whatever a token costs here is taken from the model, so parts are sent at most so often.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from edgeinfer.app.server.answers import Record
from edgeinfer.app.server.failures import Refusal, refusal_of

if TYPE_CHECKING:
    from edgeinfer.engine.stream import TextStream

T = TypeVar("T")

EVERY_S = 0.04
"""Parts of an answer are sent no more often; a person sees no difference."""
PING_S = 5.0
"""A comment is sent after so long without anything else, so that nobody takes the connection for dead."""
LOOK_S = 0.25
"""How often it is looked whether a client that gets a whole answer is still there."""
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def event(record: Record) -> bytes:
    """A record as an event."""
    return b"data: " + json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def read_all(streams: Sequence[TextStream], request: Request) -> None:
    """Make whole answers side by side. Raises what ended them, and Refusal where the client is gone."""
    try:
        await unless_gone(asyncio.gather(*map(_read, streams)), request, lambda: _stop(streams))
    finally:
        _stop(streams)  # where one has failed, nobody takes the others


async def _read(stream: TextStream) -> None:
    async for _ in stream.chunks(LOOK_S):
        pass


async def thread_done(work: Callable[[], T]) -> T:
    """What some work in a thread gives. A thread cannot be cancelled: what it uses is in use until it is done."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.exception()  # asked for, lest it is reported
        raise


async def unless_gone(work: Awaitable[T], request: Request, stop: Callable[[], None]) -> T:
    """What some work gives; where the client goes away meanwhile it is stopped. Raises Refusal then."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_S)
            if not task.done() and await request.is_disconnected():
                stop()
                raise Refusal(499, "the client has gone")
        return task.result()
    finally:
        if not task.done():
            stop()
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


def _stop(streams: Sequence[TextStream]) -> None:
    for stream in streams:
        stream.stop()


async def side_by_side(streams: Sequence[TextStream]) -> AsyncIterator[tuple[int, str]]:
    """The texts of several streams as they arrive, each with its stream's number. Raises what ends any of them."""
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


def streaming(events: AsyncIterator[bytes], done: Callable[[], Awaitable[None]]) -> Response:
    """Events as a response; `done` is awaited at its end, however it comes."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_pinged(events, done), media_type="text/event-stream", headers=headers)


async def _next(events: AsyncIterator[bytes]) -> bytes:
    return await anext(events)


async def _pinged(events: AsyncIterator[bytes], done: Callable[[], Awaitable[None]]) -> AsyncIterator[bytes]:
    """Events, with comments where nothing comes for long; what goes wrong is the last event."""
    waiting: asyncio.Task[bytes] | None = None
    try:
        while True:
            waiting = asyncio.ensure_future(_next(events))
            while not (await asyncio.wait({waiting}, timeout=PING_S))[0]:
                yield PING
            yield waiting.result()
    except StopAsyncIteration:
        pass
    except Exception as reason:
        yield event(refusal_of(reason).body())
    finally:
        if waiting is not None:
            waiting.cancel()
            with suppress(asyncio.CancelledError, Exception):  # also of one that ended just as the client left
                await waiting
        await events.aclose()  # type: ignore[attr-defined]
        await done()
