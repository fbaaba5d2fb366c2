"""The queue: no more answers are made and waited for than may be, however they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.listening import ServerOptions
from edgeinfer.app.server.pooled_model import PoolLimits
from edgeinfer.app.server.state import Metrics, ServerState
from tests.server.conftest import served


def test_a_burst_finds_no_more_places_than_there_are() -> None:
    """All come before any has a model."""

    async def scenario() -> None:
        opened = asyncio.Event()

        class Opening:
            limits = PoolLimits()

            @asynccontextmanager
            async def use(self, name: str | None, *, loads: bool) -> AsyncIterator[None]:
                await opened.wait()
                yield None

        state = ServerState(ServerOptions(parallel=1, queue=2), Opening(), Metrics(), {})  # type: ignore[arg-type]

        async def ask(n_answers: int) -> int:
            try:
                async with state.model(None, n_answers):
                    return 200
            except APIError as error:
                return error.status

        async def burst(n_answers: int) -> list[int]:
            opened.clear()
            asked = [asyncio.create_task(ask(n_answers)) for _ in range(20)]
            for _ in range(3):
                await asyncio.sleep(0)
            opened.set()
            return sorted(await asyncio.gather(*asked))

        assert await burst(1) == [200] * 3 + [503] * 17
        assert await burst(2) == [200] + [503] * 19
        assert await burst(0) == [200] * 20  # what makes no answers needs no place
        opened.clear()
        gone = asyncio.create_task(ask(3))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert state.n_answers == 0

    asyncio.run(scenario())


def test_more_answers_than_there_are_places_are_no_matter_of_time(tiny_model: Path) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with served(tiny_model, ServerOptions(port=0, parallel=1, queue=2)) as running:
        refused = running.http().post("/v1/chat/completions", json=body | {"n": 4})
        assert (refused.status_code, "retry-after" in refused.headers) == (400, False)
        assert "4 answers; 3 are the most" in refused.json()["error"]["message"]
        assert len(running.http().post("/v1/chat/completions", json=body | {"n": 3}).json()["choices"]) == 3
