"""The models that a server has open: opened when they are asked for, one at a time, closed when nobody uses them.

In: names. Out: open models, which stay open while they are in use. A file that was replaced is opened anew; answers in
the making end with the model they began with. Knows no HTTP.
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

from edgeinfer.app.fit import require_model_file
from edgeinfer.app.server.failures import RETRY_S, Refusal
from edgeinfer.errors import DoesNotFit, EdgeInferError
from edgeinfer.models.file_names import model_name, without_quant

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.models.store import LocalModel

LOG = logging.getLogger("edgeinfer.server")
Identity = tuple[int, int, int]
Value = TypeVar("Value")


@dataclass(slots=True)
class Hosted:
    """An open model. `users`: requests that are being answered with it."""

    name: str
    llm: LLM
    path: Path
    identity: Identity
    opened_s: float = field(default_factory=time.time)
    used_s: float = field(default_factory=time.monotonic)
    users: int = 0


class Hosting:
    """Opens and closes models. Everything but `open_model` runs in the server's event loop."""

    def __init__(
        self,
        open_model: Callable[[Path], LLM],
        listed: Callable[[], Sequence[LocalModel]],
        default: LocalModel,
        *,
        most_models: int = 1,
        idle_s: float | None = None,
    ) -> None:
        self._open_model, self._listed = open_model, listed
        self.default = default
        self._most_models, self._idle_s = most_models, idle_s
        self._open: dict[Path, Hosted] = {}
        self._replaced: list[Hosted] = []
        self._opening = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self.used_s = time.monotonic()
        """When anything was asked last."""
        self.failure: EdgeInferError | None = None
        """Why the default model could not be opened the last time."""

    @property
    def open(self) -> tuple[Hosted, ...]:
        """The models that are open."""
        return tuple(self._open.values())

    @property
    def is_ready(self) -> bool:
        """Whether a model is open, or was and is opened again when it is asked for."""
        return self.failure is None and not (self._opening.locked() and not self._open)

    @property
    def n_users(self) -> int:
        """Requests that are being answered."""
        return sum(each.users for each in (*self._open.values(), *self._replaced))

    @property
    def is_busy(self) -> bool:
        """Whether anything is being answered, opened or closed."""
        return bool(self.n_users) or self._opening.locked()

    def models(self) -> list[LocalModel]:
        """The models that may be asked for: the default one first, then the store's."""
        others = [model for model in self._listed() if model.path != self.default.path]
        return [self.default, *others]

    def find(self, name: str | None) -> LocalModel:
        """The model that a request means. Raises ModelNotFound."""
        if self._is_default(name):
            return self.default
        assert name is not None
        models, wanted = self.models(), model_name(name).casefold()
        for known in (lambda model: model.name, lambda model: without_quant(model.name), lambda model: model.source):
            found = [model for model in models if known(model).casefold() in (wanted, name.casefold())]
            if found:
                return found[0]
        names = ", ".join(model.name for model in models[:10])
        raise Refusal(404, f"there is no model {name!r}; there are: {names}", "model_not_found", "model")

    def _is_default(self, name: str | None) -> bool:
        return name is None or name in ("", "default", self.default.name, self.default.path.name)

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[Hosted]:
        """A model, opened if need be, which stays open meanwhile. Raises what opening raises."""
        wanted = self.default if self._is_default(name) else await asyncio.to_thread(self.find, name)
        hosted = self._at_hand(wanted) or await self._taken(wanted)
        try:
            yield hosted
        finally:
            self._count_out(hosted)
            await self._whole(self._close_replaced())

    def _at_hand(self, wanted: LocalModel) -> Hosted | None:
        """A model that is open, with one user more, whatever else is being opened; None where it is to be opened."""
        hosted = self._open.get(wanted.path)
        if hosted is None or hosted.identity != _identity(wanted.path):
            return None
        hosted.users += 1
        return hosted

    async def _taken(self, wanted: LocalModel) -> Hosted:
        """A model with one user more, who may go while it is opened."""
        opening = self._begin(self._opened(wanted))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._count_out_late)
            raise

    def _count_out(self, hosted: Hosted) -> None:
        hosted.users -= 1
        hosted.used_s = self.used_s = time.monotonic()

    def _count_out_late(self, opening: asyncio.Future[Hosted]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._count_out(opening.result())

    async def _whole(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Do this to its end, whatever becomes of the request that it is done for."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _opened(self, wanted: LocalModel) -> Hosted:
        """A model that is open, with one user more. Only one is opened at a time."""
        async with self._opening:
            hosted = self._at_hand(wanted)
            if hosted is not None:
                return hosted
            if wanted.path in self._open:
                LOG.info("%s was replaced; it is opened anew", wanted.path.name)
                self._replaced.append(self._open.pop(wanted.path))
                await self._close_replaced()
            await self._make_room(wanted)
            try:
                found = await self._open_one(wanted)
            except EdgeInferError as reason:
                if wanted.path == self.default.path:
                    self.failure = reason
                raise
            self.failure = None
            self._open[wanted.path] = found
            found.users += 1
            return found

    async def _make_room(self, wanted: LocalModel) -> None:
        """Close what nobody uses until there is room for one more, unless that is no model.

        Raises Refusal where all are in use, BadGGUF.
        """
        if len(self._open) >= self._most_models:
            await asyncio.to_thread(require_model_file, wanted.path)
        while len(self._open) >= self._most_models:
            if not await self._close_idlest():
                names = ", ".join(each.name for each in self.open)
                raise Refusal(
                    503,
                    f"{names}: in use, and no more may be open (`edgeinfer serve --most-models`); try again later",
                    "models_in_use",
                    "model",
                    {"Retry-After": RETRY_S},
                )

    async def _open_one(self, wanted: LocalModel) -> Hosted:
        """Open a model; where memory is short, close those that nobody uses first."""
        while True:
            identity = _identity(wanted.path)
            try:
                llm = await asyncio.to_thread(self._open_model, wanted.path)
            except DoesNotFit:
                if not await self._close_idlest():
                    raise
                continue
            finally:
                self.used_s = time.monotonic()
            for notice in llm.info.notices:
                LOG.info("%s: %s", wanted.name, notice)
            return Hosted(wanted.name, llm, wanted.path, identity)

    async def _close_idlest(self) -> bool:
        """Close the model that nobody has used for longest; whether there was one."""
        idle = [each for each in self._open.values() if not each.users]
        if not idle:
            return False
        await self._close(min(idle, key=lambda each: each.used_s))
        return True

    async def unload(self, name: str) -> bool:
        """Close a model that nobody uses; whether it was open. Raises Refusal while it is in use."""
        wanted = await asyncio.to_thread(self.find, name)
        async with self._opening:
            hosted = self._open.get(wanted.path)
            if hosted is None:
                return False
            if hosted.users:
                raise Refusal(409, f"{hosted.name} is being used by {hosted.users} requests", "model_in_use", "model")
            await self._close(hosted)
            return True

    async def close_idle(self) -> None:
        """Close models that nobody has used for long."""
        if self._idle_s is None or self._opening.locked():
            return
        async with self._opening:
            now_s = time.monotonic()
            for hosted in self.open:
                if not hosted.users and now_s - hosted.used_s >= self._idle_s:
                    LOG.info("%s was not used for %.0f s; it is closed", hosted.name, now_s - hosted.used_s)
                    await self._close(hosted)

    async def _close_replaced(self) -> None:
        """Close those that nobody uses any more; each leaves the list first, as several requests may end meanwhile."""
        while unused := next((each for each in self._replaced if not each.users), None):
            self._replaced.remove(unused)
            await asyncio.to_thread(unused.llm.close)

    async def _close(self, hosted: Hosted) -> None:
        del self._open[hosted.path]
        await self._whole(asyncio.to_thread(hosted.llm.close))

    async def close(self) -> None:
        """Stop all answers and close all models."""
        for hosted in (*self._open.values(), *self._replaced):
            hosted.llm.stop()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        for hosted in (*self._open.values(), *self._replaced):
            await asyncio.to_thread(hosted.llm.close)
        self._open.clear()
        self._replaced.clear()


def _identity(path: Path) -> Identity:
    """What tells a file from another at the same place."""
    try:
        found = path.stat()
    except OSError as reason:
        raise Refusal(503, f"{path.name} cannot be read: {reason.strerror or reason}", "model_missing") from None
    return found.st_ino, found.st_size, found.st_mtime_ns
