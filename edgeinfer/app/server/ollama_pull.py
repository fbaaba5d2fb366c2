"""Pulling a model on behalf of a client of Ollama's API.

In: a model's name in Ollama's words, or a source of ours. Out: records of progress. The pull runs in a thread; it ends
when nobody reads the records any more, and what was received stays for the next pull.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from edgeinfer.app.plans.fit import approve_quietly
from edgeinfer.app.server.errors import RETRY_S, APIError
from edgeinfer.app.server.objects import Record
from edgeinfer.errors import ModelNotFound
from edgeinfer.models.download.addresses import is_inside
from edgeinfer.models.download.policy import PullStopped
from edgeinfer.models.sources import parse_source
from edgeinfer.models.sources.path import PathSource
from edgeinfer.models.sources.url import UrlSource
from edgeinfer.models.store import ModelStore

if TYPE_CHECKING:
    from edgeinfer.app.server.state import ServerState
    from edgeinfer.models.store import LocalModel

HUBS = ("hf.co/", "huggingface.co/")
MOST_PULLS = 2
"""Pulls at a time: each takes a thread that others wait for."""
Step = tuple[int, int | None]
"""Bytes done, and all bytes if they are known."""


def source_of(name: str, state: ServerState) -> str | None:
    """Where a model comes from; None if it is here. Raises ModelNotFound.

    Files of this computer, and addresses of its network, are named only to a server that no other computer reaches.
    Raises APIError for them, and for all that is not here where clients may pull nothing.

    A name of the hub is one of ours; other names of Ollama are found if the model is on this computer, in the store or
    among those that Ollama has pulled, for edgeinfer does not download from Ollama's registry.
    """
    for hub in HUBS:
        if name.startswith(hub):
            name = f"hf:{name.removeprefix(hub)}"
    try:
        state.pool.find(name)
    except APIError:
        try:
            source = parse_source(name)  # raises what would work
        except (OSError, ValueError):  # no name of a file either, such as one that is too long
            raise ModelNotFound(f"no model is called {name[:80]!r}") from None
        if "pull" in state.options.without:
            raise APIError(
                403,
                f"{name[:80]!r} is not here, and this server pulls no models for clients (`edgeinfer serve --without "
                "pull`); on its own computer, `edgeinfer pull` does",
                None,
                "model",
            ) from None
        if isinstance(source, PathSource) and not state.options.is_local:
            raise APIError(
                403, "other computers reach this server, so that no path is taken: name a source", None, "model"
            ) from None
        if isinstance(source, UrlSource) and not state.options.is_local and _is_near(source.url):
            raise APIError(
                403, "other computers reach this server, so that only public addresses are taken", None, "model"
            ) from None
        return name
    return None


def _is_near(url: str) -> bool:
    """Whether an address is that of this computer or its network."""
    return is_inside(urlsplit(url).hostname or "", resolves=True)


def require_turn(state: ServerState) -> None:
    """Raises APIError while as many models are being pulled as may be."""
    if state.n_pulls >= MOST_PULLS:
        raise APIError(503, f"{MOST_PULLS} models are being pulled; try again later", headers={"Retry-After": RETRY_S})


async def pull_records(source: str | None, state: ServerState) -> AsyncIterator[Record]:
    """Pull a model, and yield the progress; without a source, it is here. Raises as `ModelStore.pull`."""
    yield {"status": "pulling manifest"}
    if source is not None:
        require_turn(state)
        loop, steps, is_left = asyncio.get_running_loop(), asyncio.Queue[Step | None](), threading.Event()

        def progress(done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
            if is_left.is_set():
                raise PullStopped
            loop.call_soon_threadsafe(steps.put_nowait, (done_bytes, total_bytes))

        def pull() -> LocalModel:
            return ModelStore().pull(source, progress=progress, approve=approve_quietly)

        def ended(task: asyncio.Task[LocalModel]) -> None:
            state.n_pulls -= 1
            steps.put_nowait(None)
            if not task.cancelled():
                task.exception()  # retrieve the exception, or asyncio would log it

        state.n_pulls += 1
        task = asyncio.create_task(asyncio.to_thread(pull))
        task.add_done_callback(ended)
        try:
            while (step := await steps.get()) is not None:
                state.pool.used_s = time.monotonic()  # a server that pulls is not idle
                yield _progress(source, *step)
            task.result()
        finally:
            is_left.set()
    for status in ("verifying sha256 digest", "writing manifest", "success"):
        yield {"status": status}


def _progress(source: str, done_bytes: int, total_bytes: int | None) -> Record:
    """A step of the download, which the source identifies: the digest is known when it ends."""
    total = {} if total_bytes is None else {"total": total_bytes}
    return {"status": f"pulling {source}", "digest": source, **total, "completed": done_bytes}
