"""The server's open models: opened on demand, one at a time, and closed when idle or for others.

In: model names. Out: open models, which stay open while they are in use. Before a model opens, those that were used
longest ago are closed until there is room for it; while all are in use, requests wait in order. If a model's file or
preset has been replaced, it is opened anew; running requests finish with the model they started with. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from edgeinfer.app.server.errors import RETRY_S, APIError
from edgeinfer.app.server.model_events import ALL_MODELS, ModelEvents
from edgeinfer.app.server.model_list import Key, ModelList, key_of
from edgeinfer.app.server.model_memory import ModelMemory, planned_need
from edgeinfer.app.server.pooled_model import PooledModel, PoolLimits, identity_of
from edgeinfer.engine.closed_models import free_closed_models_soon
from edgeinfer.errors import DoesNotFit, EdgeInferError
from edgeinfer.load_options import LoadOptions

if TYPE_CHECKING:
    from edgeinfer.app.server.objects import Record
    from edgeinfer.engine.llm import LLM
    from edgeinfer.models.store import LocalModel
    from edgeinfer.scheduling.cost.memory import MemoryNeed
    from edgeinfer.steps import Progress

LOG = logging.getLogger("edgeinfer.server")
Value = TypeVar("Value")
BUSY, GONE = "models_in_use", "client_gone"
"""Codes of errors that say nothing of the model that was to be opened."""


OpenModel = Callable[["LocalModel", "Progress"], "LLM"]


@dataclass(slots=True)
class Waiting:
    """A request that waits for a model. `is_over`: it was cancelled."""

    is_over: bool = False


class ModelPool:
    """Opens and closes models. All methods run in the server's event loop, except `open_model`."""

    def __init__(
        self,
        open_model: OpenModel,
        names: ModelList,
        limits: PoolLimits | None = None,
        load: LoadOptions | None = None,
    ) -> None:
        """`load`: how models without a preset are loaded. With `strict_names`, unknown names are refused."""
        self._open_model, self.names, self.limits = open_model, names, limits or PoolLimits()
        self._load = load or LoadOptions()
        self._memory = ModelMemory(self.limits.memory_bytes)
        self.events = ModelEvents()
        self.failures: dict[str, str] = {}
        """Why models could not be opened the last time they were to be, by name."""
        self._open: dict[Key, PooledModel] = {}
        self._replaced: list[PooledModel] = []
        self._opening, self._released = asyncio.Lock(), asyncio.Event()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._is_closing = False
        self.used_s = time.monotonic()
        """Time of the last request."""
        self.note: Callable[[PooledModel], Record] = lambda pooled: {}
        """Called with every model that was opened; returns what listeners are told of it."""
        self.note_closing: Callable[[PooledModel], None] = lambda pooled: None
        """Called with every model that is about to be closed."""
        self.failure: EdgeInferError | None = None
        """Why the last attempt to open the default model failed; None if it did not."""

    @property
    def default(self) -> LocalModel:
        """The model of requests that name none."""
        return self.names.default

    @property
    def open(self) -> tuple[PooledModel, ...]:
        """The models that are open now."""
        return tuple(self._open.values())

    def opened(self, model: LocalModel) -> PooledModel | None:
        """A model if it is open now."""
        return self._open.get(key_of(model))

    @property
    def is_ready(self) -> bool:
        """Whether a model is open, or was open before and will be reopened on demand."""
        return self.failure is None and not (self._opening.locked() and not self._open)

    @property
    def n_users(self) -> int:
        """The number of requests that use a model."""
        return sum(pooled.users for pooled in (*self._open.values(), *self._replaced))

    @property
    def is_busy(self) -> bool:
        """Whether a model is in use, being opened or being closed."""
        return bool(self.n_users) or self._opening.locked()

    def models(self) -> list[LocalModel]:
        """The models that requests may name."""
        return self.names.models()

    def find(self, name: str | None) -> LocalModel:
        """Look up a model by name. Raises APIError."""
        return self.names.find(name)

    def answering(self, name: str | None) -> LocalModel:
        """The model that answers to a name: while one alone is open, any unknown name is its own. Raises APIError."""
        try:
            return self.find(name)
        except APIError:
            if self.limits.strict_names or len(self._open) > 1:
                raise
        return next((model for model in self.models() if key_of(model) in self._open), self.default)

    @asynccontextmanager
    async def use(self, name: str | None, *, loads: bool = True) -> AsyncIterator[PooledModel]:
        """Keep a model open for the block, opening it if necessary. Raises what opening raises.

        Without `loads`, raises APIError if it is not open.
        """
        is_default = self.names.is_default(name)
        model = self.default if is_default else await asyncio.to_thread(self.answering, name)
        pooled = self._acquire_open(model)
        if pooled is None and not loads:
            raise APIError(400, f"{model.name} is not loaded; POST /models/load loads it", "model_not_loaded", "model")
        pooled = pooled or await self._acquire(model)
        try:
            yield pooled
        finally:
            self._count_out(pooled)
            await self._whole(self._close_unused(pooled))

    async def _close_unused(self, pooled: PooledModel) -> None:
        """Close what has no user now, if it is not to stay open after a request."""
        await self._close_replaced()
        if pooled.keep_s == 0:
            await self.close_idle()

    def _acquire_open(self, model: LocalModel) -> PooledModel | None:
        """Add a user to an open model and return it; None if the model has to be opened first."""
        pooled = self._open.get(key_of(model))
        if pooled is None or pooled.identity != identity_of(model.path):
            return None
        pooled.users += 1
        return pooled

    async def _acquire(self, model: LocalModel) -> PooledModel:
        """Return a model with one more user; a request that is cancelled while it waits for room opens none."""
        waiting = Waiting()
        opening = self._begin(self._opened(model, waiting))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            waiting.is_over = True
            self._released.set()
            opening.add_done_callback(self._count_out_late)
            raise

    def _count_out(self, pooled: PooledModel) -> None:
        pooled.users -= 1
        pooled.used_s = self.used_s = time.monotonic()
        self._released.set()

    def _count_out_late(self, opening: asyncio.Future[PooledModel]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._count_out(opening.result())

    async def _whole(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Await `work` to its end, even if the request is cancelled."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _opened(self, model: LocalModel, waiting: Waiting) -> PooledModel:
        """Open a model for one user. Only one model opens at a time; requests for others follow in order."""
        async with self._opening:
            self._require_waiting(waiting)
            pooled = self._acquire_open(model)
            if pooled is not None:
                return pooled
            if key_of(model) in self._open:
                LOG.info("%s was replaced; it is opened again", model.path.name)
                await self._replace(self._open[key_of(model)])
            load = self.load_of(model)
            try:
                opened = await self._open_one(model, await self._make_room(model, waiting))
            except Exception as reason:
                self._failed(model, reason)
                raise
            self.failures.pop(model.name, None)
            self.failure = None
            self._open[key_of(model)] = opened
            opened.users += 1
            self.events.status(model.name, "loaded", info=self.note(opened))
            if self.load_of(model) != load:  # its preset was read again meanwhile
                await self._replace(opened)
            return opened

    def _failed(self, model: LocalModel, reason: Exception) -> None:
        """Note why a model could not be opened, unless others were in its way."""
        if isinstance(reason, APIError) and reason.code in (BUSY, GONE):
            return
        if model.path == self.default.path and isinstance(reason, EdgeInferError):
            self.failure = reason
        text = str(reason) if isinstance(reason, EdgeInferError | APIError) else "the server's log says why"
        self.failures[model.name] = text
        self.events.status(model.name, "unloaded", failed=True, exit_code=1, reason=text)

    async def _replace(self, pooled: PooledModel) -> None:
        """Close an open model as soon as its requests have ended; new requests open it anew."""
        del self._open[key_of(pooled.model)]
        self._replaced.append(pooled)
        await self._close_replaced()

    async def _make_room(self, model: LocalModel, waiting: Waiting) -> MemoryNeed | None:
        """Close models until one more may be open, and wait while all are in use; returns what it will take.

        Raises APIError if it never fits, BadGGUF if its file is no model; then none is closed. Raises APIError too if
        others stay in use, the client leaves or the server ends.
        """
        need = await asyncio.to_thread(planned_need, model, self.load_of(model), self.limits.n_sessions)
        if need is not None:
            self._memory.require(model, need)
        until_s = time.monotonic() + self.limits.wait_s
        while self._lacks_room(need):
            self._require_waiting(waiting)
            self._released.clear()
            await self._close_replaced()
            if not await self._close_idlest():
                await self._wait(until_s)
        if not self._open and not self._replaced:
            self._memory.note_free()
        return need

    def _require_waiting(self, waiting: Waiting) -> None:
        """Raises APIError if nobody waits for a model any more."""
        if waiting.is_over or self._is_closing:
            raise APIError(499, "the client has gone, or the server ends", GONE)

    def load_of(self, model: LocalModel) -> LoadOptions:
        """How a model is loaded."""
        return self.names.load_of(model, self._load)

    def _lacks_room(self, need: MemoryNeed | None) -> bool:
        if len(self._open) >= self.limits.most_models:
            return True
        known = [pooled.need for pooled in (*self.open, *self._replaced) if pooled.need is not None]
        return need is not None and self._memory.missing_bytes(need, known) > 0

    async def _wait(self, until_s: float) -> None:
        """Wait until a request ends. Raises APIError if none does in time."""
        names = ", ".join(pooled.name for pooled in (*self.open, *self._replaced))
        try:
            await asyncio.wait_for(self._released.wait(), max(0, until_s - time.monotonic()))
        except TimeoutError:
            raise APIError(
                503,
                f"{names}: in use, and there is no room for more (`edgeinfer serve --most-models`, "
                "`--models-memory`); try again later",
                BUSY,
                "model",
                {"Retry-After": RETRY_S},
            ) from None

    async def _open_one(self, model: LocalModel, need: MemoryNeed | None) -> PooledModel:
        """Open a model; if memory is short, close idle models and retry."""
        self.events.status(model.name, "loading")
        preset, progress = self.names.preset_of(model), self.events.loading(model.name)
        keep_s = preset.keep_s if preset is not None and preset.has_keep_s else self.limits.idle_s
        while True:
            identity = identity_of(model.path)
            try:
                llm = await asyncio.to_thread(self._open_model, model, progress)
            except DoesNotFit:
                if not await self._close_idlest():
                    raise
                continue
            finally:
                self.used_s = time.monotonic()
            for notice in llm.info.notices:
                LOG.info("%s: %s", model.name, notice)
            return PooledModel(model, llm, identity, keep_s, need)

    async def _close_idlest(self) -> bool:
        """Close the model that has been idle the longest; returns False if there was none."""
        idle = [pooled for pooled in self._open.values() if not pooled.users]
        if not idle:
            return False
        idlest = min(idle, key=lambda pooled: pooled.used_s)
        LOG.info("%s makes room for another model; it is closed", idlest.name)
        await self._close(idlest)
        return True

    async def unload(self, name: str) -> bool:
        """Close an idle model; returns whether it was open. Raises APIError if it is in use."""
        model = await asyncio.to_thread(self.find, name)
        if model.name in self.events.progress:
            async with self._opening:  # until it is open
                pass
        pooled = self._open.get(key_of(model))
        if pooled is None:
            return False
        if pooled.users:
            raise APIError(409, f"{pooled.name} is being used by {pooled.users} requests", "model_in_use", "model")
        await self._close(pooled)
        return True

    async def reread(self) -> None:
        """Read the presets again; open models whose preset changed or is gone are closed. Raises BadSetting."""
        before = self.names.presets
        await asyncio.to_thread(self.names.reread)
        after = self.names.presets
        if before is None or after is None:
            return
        for pooled in self.open:
            model = pooled.model
            is_other = (before.of(model), before.settings_of(model)) != (after.of(model), after.settings_of(model))
            if is_other and self._is_open(pooled):
                self.events.status(pooled.name, "unloaded")
                await self._whole(self._replace(pooled))
        self.events.send("models_reload", ALL_MODELS)

    async def keep(self, name: str, seconds: float | None) -> bool:
        """Set how long a model stays open without use, None for good; returns whether it is open."""
        model = await asyncio.to_thread(self.find, name)
        pooled = self._open.get(key_of(model))
        if pooled is None:
            return False
        pooled.keep_s = seconds
        await self._whole(self._close_unused(pooled))
        return True

    async def close_idle(self) -> None:
        """Close models that have been idle for as long as they are kept."""
        if self._opening.locked() or all(pooled.keep_s is None for pooled in self.open):
            return
        async with self._opening:
            now_s = time.monotonic()
            for pooled in self.open:
                if pooled.users or pooled.keep_s is None or not self._is_open(pooled):
                    continue
                if now_s - pooled.used_s >= pooled.keep_s:
                    LOG.info("%s was idle for %.0f s; it is closed", pooled.name, now_s - pooled.used_s)
                    await self._close(pooled)

    def _is_open(self, pooled: PooledModel) -> bool:
        """Whether it has not been closed or replaced while something else was awaited."""
        return self._open.get(key_of(pooled.model)) is pooled

    async def _close_replaced(self) -> None:
        """Close replaced models without users.

        Each is removed from the list before it is closed, as several requests may end meanwhile.
        """
        while unused := next((pooled for pooled in self._replaced if not pooled.users), None):
            self._replaced.remove(unused)
            self.note_closing(unused)
            await asyncio.to_thread(unused.llm.close)
            free_closed_models_soon()

    async def _close(self, pooled: PooledModel) -> None:
        del self._open[key_of(pooled.model)]
        self.note_closing(pooled)
        await self._whole(asyncio.to_thread(pooled.llm.close))
        free_closed_models_soon()
        self.events.status(pooled.name, "unloaded")

    async def close(self) -> None:
        """Stop all answers and close all models."""
        self._is_closing = True
        self._released.set()
        self.events.close()
        for pooled in (*self._open.values(), *self._replaced):
            pooled.llm.stop()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for pooled in (*self._open.values(), *self._replaced):
            await asyncio.to_thread(pooled.llm.close)
        self._open.clear()
        self._replaced.clear()
