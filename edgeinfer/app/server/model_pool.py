"""The server's open models: opened on demand, one at a time, and closed when idle.

In: model names. Out: open models, which stay open while they are in use. If a model's file has been replaced, the new
file is opened; running requests finish with the model they started with. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgeinfer.app.plans.fit import require_model_file
from edgeinfer.app.server.errors import RETRY_S, APIError
from edgeinfer.app.server.slots import CacheSlots
from edgeinfer.errors import DoesNotFit, EdgeInferError
from edgeinfer.models.file_names import model_name, without_quant
from edgeinfer.models.local_model import LATEST

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.models.store import LocalModel

LOG = logging.getLogger("edgeinfer.server")
Identity = tuple[int, int, int]
Value = TypeVar("Value")


@dataclass(slots=True)
class PooledModel:
    """An open model. `users`: number of requests that use it.

    `keep_s`: seconds without use after which it is closed; None: never.
    """

    name: str
    llm: LLM
    path: Path
    identity: Identity
    keep_s: float | None = None
    used_s: float = field(default_factory=time.monotonic)
    users: int = 0
    slots: CacheSlots = field(default_factory=CacheSlots)


class ModelPool:
    """Opens and closes models. All methods run in the server's event loop, except `open_model`."""

    def __init__(
        self,
        open_model: Callable[[Path], LLM],
        listed: Callable[[], Sequence[LocalModel]],
        default: LocalModel,
        *,
        most_models: int = 1,
        idle_s: float | None = None,
        aliases: Sequence[str] = (),
        strict_names: bool = False,
    ) -> None:
        """`aliases`: further names of the default model. `strict_names`: requests for unknown names are refused."""
        self._open_model, self._listed = open_model, listed
        self.default = default
        self._most_models, self._idle_s = most_models, idle_s
        self.aliases, self._strict_names = tuple(aliases), strict_names
        self._open: dict[Path, PooledModel] = {}
        self._replaced: list[PooledModel] = []
        self._opening = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self.used_s = time.monotonic()
        """Time of the last request."""
        self.note: Callable[[PooledModel], None] = lambda pooled: None
        """Called with every model that was opened."""
        self.failure: EdgeInferError | None = None
        """Why the last attempt to open the default model failed; None if it did not."""

    @property
    def open(self) -> tuple[PooledModel, ...]:
        """The models that are open now."""
        return tuple(self._open.values())

    def opened(self, model: LocalModel) -> PooledModel | None:
        """A model if it is open now."""
        return self._open.get(model.path)

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
        """The models that requests may name: the default model first, then those in the store."""
        others = [model for model in self._listed() if model.path != self.default.path]
        return [self.default, *others]

    def find(self, name: str | None) -> LocalModel:
        """Look up a model by name. Raises APIError."""
        if self._is_default(name):
            return self.default
        assert name is not None
        plain = name.removesuffix(f":{LATEST}")
        names = {each.casefold() for each in (model_name(plain), plain, name, f"{name}:{LATEST}")}
        models = self.models()
        for key in (lambda model: model.name, lambda model: without_quant(model.name), lambda model: model.source):
            for model in models:
                if key(model).casefold() in names:
                    return model
        known = ", ".join(model.name for model in models[:10])
        raise APIError(404, f"there is no model {name!r}; there are: {known}", "model_not_found", "model")

    def _is_default(self, name: str | None) -> bool:
        if name is None:
            return True
        own = "", "default", self.default.name, self.default.path.name, *self.aliases
        return name.removesuffix(f":{LATEST}") in own

    def _answering(self, name: str | None) -> LocalModel:
        """The model that answers to a name: while one alone is open, any unknown name is its own. Raises APIError."""
        try:
            return self.find(name)
        except APIError:
            if self._strict_names or len(self._open) > 1:
                raise
        return next((model for model in self.models() if model.path in self._open), self.default)

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[PooledModel]:
        """Keep a model open for the block, opening it if necessary. Raises what opening raises."""
        model = self.default if self._is_default(name) else await asyncio.to_thread(self._answering, name)
        pooled = self._acquire_open(model) or await self._acquire(model)
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
        pooled = self._open.get(model.path)
        if pooled is None or pooled.identity != _identity(model.path):
            return None
        pooled.users += 1
        return pooled

    async def _acquire(self, model: LocalModel) -> PooledModel:
        """Return a model with one more user; the request may be cancelled while the model opens."""
        opening = self._begin(self._opened(model))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._count_out_late)
            raise

    def _count_out(self, pooled: PooledModel) -> None:
        pooled.users -= 1
        pooled.used_s = self.used_s = time.monotonic()

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

    async def _opened(self, model: LocalModel) -> PooledModel:
        """Open a model for one user. Only one model opens at a time."""
        async with self._opening:
            pooled = self._acquire_open(model)
            if pooled is not None:
                return pooled
            if model.path in self._open:
                LOG.info("%s was replaced; it is opened again", model.path.name)
                self._replaced.append(self._open.pop(model.path))
                await self._close_replaced()
            await self._make_room(model)
            try:
                opened = await self._open_one(model)
            except EdgeInferError as reason:
                if model.path == self.default.path:
                    self.failure = reason
                raise
            self.failure = None
            self._open[model.path] = opened
            opened.users += 1
            self.note(opened)
            return opened

    async def _make_room(self, model: LocalModel) -> None:
        """Close idle models until one more may be open, after checking that its file is a model.

        Raises APIError if all open models are in use, BadGGUF if the file is no model.
        """
        if len(self._open) >= self._most_models:
            await asyncio.to_thread(require_model_file, model.path)
        while len(self._open) >= self._most_models:
            if not await self._close_idlest():
                names = ", ".join(pooled.name for pooled in self.open)
                raise APIError(
                    503,
                    f"{names}: in use, and no more may be open (`edgeinfer serve --most-models`); try again later",
                    "models_in_use",
                    "model",
                    {"Retry-After": RETRY_S},
                )

    async def _open_one(self, model: LocalModel) -> PooledModel:
        """Open a model; if memory is short, close idle models and retry."""
        while True:
            identity = _identity(model.path)
            try:
                llm = await asyncio.to_thread(self._open_model, model.path)
            except DoesNotFit:
                if not await self._close_idlest():
                    raise
                continue
            finally:
                self.used_s = time.monotonic()
            for notice in llm.info.notices:
                LOG.info("%s: %s", model.name, notice)
            return PooledModel(model.name, llm, model.path, identity, self._idle_s)

    async def _close_idlest(self) -> bool:
        """Close the model that has been idle the longest; returns False if there was none."""
        idle = [pooled for pooled in self._open.values() if not pooled.users]
        if not idle:
            return False
        await self._close(min(idle, key=lambda pooled: pooled.used_s))
        return True

    async def unload(self, name: str) -> bool:
        """Close an idle model; returns whether it was open. Raises APIError if it is in use."""
        model = await asyncio.to_thread(self.find, name)
        async with self._opening:
            pooled = self._open.get(model.path)
            if pooled is None:
                return False
            if pooled.users:
                raise APIError(409, f"{pooled.name} is being used by {pooled.users} requests", "model_in_use", "model")
            await self._close(pooled)
            return True

    async def keep(self, name: str, seconds: float | None) -> bool:
        """Set how long a model stays open without use, None for good; returns whether it is open."""
        model = await asyncio.to_thread(self.find, name)
        pooled = self._open.get(model.path)
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
                if pooled.users or pooled.keep_s is None:
                    continue
                if now_s - pooled.used_s >= pooled.keep_s:
                    LOG.info("%s was idle for %.0f s; it is closed", pooled.name, now_s - pooled.used_s)
                    await self._close(pooled)

    async def _close_replaced(self) -> None:
        """Close replaced models without users.

        Each is removed from the list before it is closed, as several requests may end meanwhile.
        """
        while unused := next((pooled for pooled in self._replaced if not pooled.users), None):
            self._replaced.remove(unused)
            await asyncio.to_thread(unused.llm.close)

    async def _close(self, pooled: PooledModel) -> None:
        del self._open[pooled.path]
        await self._whole(asyncio.to_thread(pooled.llm.close))

    async def close(self) -> None:
        """Stop all answers and close all models."""
        for pooled in (*self._open.values(), *self._replaced):
            pooled.llm.stop()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for pooled in (*self._open.values(), *self._replaced):
            await asyncio.to_thread(pooled.llm.close)
        self._open.clear()
        self._replaced.clear()


def _identity(path: Path) -> Identity:
    """Identify a file, to notice when another file replaces it at the same path."""
    try:
        status = path.stat()
    except OSError as reason:
        raise APIError(503, f"{path.name} cannot be read: {reason.strerror or reason}", "model_missing") from None
    return status.st_ino, status.st_size, status.st_mtime_ns
