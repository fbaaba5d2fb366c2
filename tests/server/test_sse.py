"""Answers side by side, of which one that fails takes the others with it; streams that end, however they do."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Sequence
from itertools import product

import pytest
from starlette.requests import Request
from starlette.types import Message

from edgeinfer.app.server import streaming
from edgeinfer.app.server.streaming import read_all, side_by_side
from edgeinfer.errors import EngineClosed
from tests.server.conftest import written


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


class Client:
    """A client that leaves at a moment, or does not read what is sent to it."""

    def __init__(self, *, reads: bool) -> None:
        self._reads = reads
        self.gone, self.told = asyncio.Event(), asyncio.Event()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if not self._reads:
            await asyncio.Event().wait()
        if message.get("body"):
            self.told.set()


@pytest.mark.parametrize(("n_turns", "reads"), [*product(range(6), [True, False]), (None, True)])
async def test_a_client_that_leaves_leaves_nothing_behind(n_turns: int | None, reads: bool) -> None:
    """Whatever turn of the event loop it comes at, also before the first event (None: after it); nothing fails."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def events() -> AsyncIterator[bytes]:
        try:
            yield b"a beginning"
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("closed")

    async def done() -> None:
        await asyncio.sleep(0)
        told.append("done")

    client = Client(reads=reads)
    response = asyncio.ensure_future(streaming.streaming(events(), done)({"type": "http"}, client.receive, client.send))
    for _ in range(n_turns or 0):
        await asyncio.sleep(0)
    if n_turns is None:
        await client.told.wait()
    client.gone.set()
    await response
    del response
    gc.collect()
    await asyncio.sleep(0)
    assert told[-1] == "done"
    assert told in (["done"], ["closed", "done"])
    assert "closed" in told or n_turns is not None


async def test_why_a_stream_failed_is_in_the_log_and_not_in_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def events() -> AsyncIterator[bytes]:
        yield b"a beginning"
        raise ZeroDivisionError("/home/anna/secret.txt")

    async def done() -> None:
        pass

    beginning, end = await written(streaming.streaming(events(), done))
    assert beginning == b"a beginning"
    assert b"the server failed; its log says why" in end
    assert b"secret" not in end
    assert "secret.txt" in caplog.text
