"""Answers side by side: one that fails takes the others with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from starlette.requests import Request

from edgeinfer.app.server.sending import read_all, side_by_side
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
