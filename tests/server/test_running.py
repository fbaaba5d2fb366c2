"""When a server ends by itself: with its parent, or when nobody needs it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeinfer.app.server import running
from edgeinfer.app.server.model_list import ModelList
from edgeinfer.app.server.model_pool import ModelPool
from edgeinfer.models.store import LocalModel, path_model
from edgeinfer.steps import Progress


@dataclass
class Ending:
    """What of a web server is told to end, and a parent."""

    should_exit: bool = False
    has_ended: bool = False


class Small:
    """A model."""

    class info:  # noqa: N801
        notices = ()

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LOOK_S", 0.005)


def test_a_server_is_not_idle_while_it_opens_its_model(tiny_model: Path) -> None:
    async def scenario() -> None:
        gate, server = threading.Event(), Ending()

        def open_model(model: LocalModel, progress: Progress) -> Small:
            gate.wait(10)
            return Small()

        async def ask() -> None:
            async with pool.use(None):
                pass

        pool = ModelPool(open_model, ModelList(list, path_model(tiny_model)))  # type: ignore[arg-type]
        sidecar = running.Sidecar(idle_timeout_s=0.02)
        opening = asyncio.create_task(ask())
        watch = asyncio.create_task(running._watch(server, pool, sidecar))  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        assert not server.should_exit
        gate.set()
        await opening
        while not server.should_exit:
            await asyncio.sleep(0.005)
        watch.cancel()
        await pool.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_server_that_was_stopped_for_a_time_was_not_idle(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What clients sent meanwhile is seen only after the next look."""
    now_s, server = [1000.0], Ending()

    async def looks() -> None:
        await asyncio.sleep(10 * running.LOOK_S)

    async def scenario() -> None:
        pool = ModelPool(lambda *_: Small(), ModelList(list, path_model(tiny_model)))  # type: ignore[arg-type,return-value]
        pool.used_s = now_s[0]
        watch = asyncio.create_task(running._watch(server, pool, running.Sidecar(idle_timeout_s=30.0)))  # type: ignore[arg-type]
        await looks()
        now_s[0] += 60.0  # SIGSTOP, or a computer that sleeps
        await looks()
        assert not server.should_exit
        while not server.should_exit:
            now_s[0] += 0.1
            await asyncio.sleep(running.LOOK_S / 5)
        assert now_s[0] >= 1090.0
        watch.cancel()

    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_parent_is_watched_whatever_becomes_of_models(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        server, n_tried = Ending(), [0]

        async def close_idle() -> None:
            n_tried[0] += 1
            raise RuntimeError("it cannot be closed")

        pool = ModelPool(lambda *_: Small(), ModelList(list, path_model(tiny_model)))  # type: ignore[arg-type,return-value]
        monkeypatch.setattr(pool, "close_idle", close_idle)
        sidecar = running.Sidecar(parent=server)  # type: ignore[arg-type]
        watch = asyncio.create_task(running._watch(server, pool, sidecar))  # type: ignore[arg-type]
        while not n_tried[0]:
            await asyncio.sleep(0.005)
        server.has_ended = True
        while not server.should_exit:
            await asyncio.sleep(0.005)
        watch.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 20))
