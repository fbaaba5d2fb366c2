"""Pulling models in the background and deleting them, told by events, as llama-server's /models does.

In: names: of the hub (USER/REPO:QUANT), or sources of ours. Out: events, and records of what is under way.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgeinfer.app.server.errors import APIError, api_error
from edgeinfer.app.server.objects import Record
from edgeinfer.app.server.ollama_pull import pull_records, require_turn, source_of

if TYPE_CHECKING:
    from edgeinfer.app.server.model_pool import ModelPool
    from edgeinfer.app.server.state import ServerState

LOG = logging.getLogger("edgeinfer.server")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")


class Downloads:
    """The models that are being pulled, by the names that clients gave. All methods run in the server's event loop."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.progress: dict[str, Record] = {}

    async def begin(self, name: str, state: ServerState) -> None:
        """Begin to pull a model. Raises APIError if it is here or cannot be pulled now, ModelNotFound."""
        wanted = f"hf:{name}" if HUB_NAME.fullmatch(name) else name
        source = await asyncio.to_thread(source_of, wanted, state)
        if source is None or name in self._tasks:
            raise APIError(400, f"{name!r} is here, or being pulled", param="model")
        require_turn(state)
        self.progress[name] = {}
        task = self._tasks[name] = asyncio.create_task(self._pull(name, source, state))
        task.add_done_callback(self._forget(name))

    def _forget(self, name: str) -> Callable[[asyncio.Task[None]], None]:
        def forget(task: asyncio.Task[None]) -> None:
            self._tasks.pop(name, None)
            self.progress.pop(name, None)

        return forget

    async def _pull(self, name: str, source: str, state: ServerState) -> None:
        events, records = state.pool.events, pull_records(source, state)
        try:
            async for record in records:
                if "completed" in record:
                    step = {"done": record["completed"], "total": record.get("total", 0)}
                    self.progress[name] = {source: step}
                    events.send("download_progress", name, {source: step})
        except asyncio.CancelledError:
            events.send("download_failed", name, {"reason": "it was cancelled"})
            raise
        except Exception as reason:
            LOG.warning("%s could not be pulled: %s", name, reason)
            events.send("download_failed", name, {"reason": api_error(reason).message})
        else:
            events.send("download_finished", name)
        finally:
            await records.aclose()  # type: ignore[attr-defined]

    async def cancel(self, name: str) -> bool:
        """Stop pulling a model; returns whether it was being pulled. What was received stays for the next pull."""
        task = self._tasks.get(name)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait([task])
        return True


async def remove_model_file(pool: ModelPool, name: str) -> None:
    """Delete a model that nobody uses, or take it from the list if its file is not edgeinfer's. Raises APIError."""
    from edgeinfer.app.removal import remove_model
    from edgeinfer.models.store import ModelStore

    model = await asyncio.to_thread(pool.find, name)
    if pool.names.is_configured(model):
        raise APIError(409, f"{model.name} is the model that this server was started with, or a preset of it: it stays")
    await pool.unload(model.name)
    await asyncio.to_thread(remove_model, ModelStore(), model.name)
    pool.events.send("model_remove", model.name)
