"""Answers side by side: one that fails takes the others with it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence

import pytest
from starlette.requests import Request

from edgeinfer.app.server import streaming
from edgeinfer.app.server.streaming import read_all, side_by_side
from edgeinfer.errors import EngineClosed


class Scripted:
    """A stream that goes on until it is stopped, or fails after its first part."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails, self._stopped = fails, asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    async def chunks(self, every_s: float) -> AsyncIterator[str]:
        yield "part"
        if self._fails:
            raise EngineClosed("it failed")
        await self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()


async def connected() -> dict[str, str]:
    await asyncio.Event().wait()
    return {}


async def whole(streams: Sequence[Scripted]) -> None:
    await read_all(streams, Request({"type": "http"}, connected))  # type: ignore[arg-type]


async def in_parts(streams: Sequence[Scripted]) -> None:
    async for _ in side_by_side(streams):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("read", [whole, in_parts])
def test_where_one_of_several_answers_fails_the_others_end(read) -> None:
    async def scenario() -> None:
        streams = [Scripted(), Scripted(fails=True), Scripted()]
        with pytest.raises(EngineClosed):
            await read(streams)
        assert all(stream.is_stopped for stream in streams if stream is not streams[1])

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.parametrize("n_turns", range(5))
async def test_a_client_that_leaves_at_the_very_end_leaves_nothing_unseen(n_turns: int) -> None:
    """Whatever turn of the event loop it comes at; an end that nobody looked at would be told as an error."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def events() -> AsyncIterator[bytes]:
        yield b"all there is"

    async def done() -> None:
        told.append("done")

    parts = streaming._pinged(events(), done, streaming.SSE)
    assert await anext(parts) == b"all there is"
    last = asyncio.ensure_future(parts.__anext__())
    for _ in range(n_turns):
        await asyncio.sleep(0)
    last.cancel()
    await asyncio.wait({last})
    await parts.aclose()
    del last, parts
    gc.collect()
    assert told == ["done"]
