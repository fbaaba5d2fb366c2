"""Models that are opened and closed while others are: nobody waits any more, or somebody was faster."""

from __future__ import annotations

import asyncio
from pathlib import Path

from edgeinfer.models.store import path_model
from tests.server.test_model_pool import Gated, models, pool_of

__all__ = ["models"]  # a fixture


def test_a_model_that_nobody_waits_for_any_more_is_not_opened(models: list[Path]) -> None:
    async def scenario() -> None:
        made, others = Gated(), [path_model(path) for path in models]
        pool = pool_of(made.open, others, most_models=3)

        async def ask(name: str) -> None:
            async with pool.use(name):
                pass

        made.gate.clear()
        first, second = asyncio.create_task(ask("one")), asyncio.create_task(ask("two"))
        while len(pool._under_way) < 2:
            await asyncio.sleep(0)
        second.cancel()  # while the first one is being opened
        made.gate.set()
        await first
        while pool.is_busy:
            await asyncio.sleep(0)
        assert (made.n_open, [each.name for each in pool.open]) == (1, ["one"])
        await pool.close()

    asyncio.run(scenario())


def test_an_idle_model_is_closed_once_whoever_closes_it(models: list[Path]) -> None:
    async def scenario() -> None:
        made, others = Gated(), [path_model(path) for path in models]
        pool = pool_of(made.open, others, most_models=3)
        async with pool.use("one") as one, pool.use("two") as two:
            pass
        one.keep_s = two.keep_s = 0.0
        made.gate.clear()
        closing = asyncio.create_task(pool.close_idle())
        while len(pool.open) == 2:
            await asyncio.sleep(0)
        (other,) = pool.open
        unloading = asyncio.create_task(pool.unload(other.name))
        while pool.open:
            await asyncio.sleep(0)
        made.gate.set()
        await closing
        assert await unloading
        assert made.n_open == 0
        await pool.close()

    asyncio.run(scenario())
