"""What happens to models, told to whoever listens: loading with its progress, loaded, unloaded, failed, downloads.

In: events from the server's loop, progress from any thread. Out: records as those of llama-server's /models/sse. A
listener who does not read loses the oldest events. Knows no models.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from edgeinfer.app.server.objects import Record
from edgeinfer.steps import Progress

MOST_WAITING = 1000
"""Events kept for a listener."""
LEAST_STEP = 0.01
"""Least share of a step that is worth another event."""
ALL_MODELS = "*"


class Listener:
    """Events that wait to be read."""

    def __init__(self, leave: Callable[[Listener], None]) -> None:
        self._leave = leave
        self._waiting = asyncio.Queue[Record | None]()

    def put(self, record: Record | None) -> None:
        """Add an event; None is the end."""
        if self._waiting.qsize() >= MOST_WAITING:
            self._waiting.get_nowait()
        self._waiting.put_nowait(record)

    async def records(self) -> AsyncIterator[Record]:
        """The events as they come, until the server ends."""
        while (record := await self._waiting.get()) is not None:
            yield record

    async def close(self) -> None:
        """Listen no more."""
        self._leave(self)


class ModelEvents:
    """Listeners, and the progress of models that are being loaded. All methods run in the server's event loop."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self.progress: dict[str, Record] = {}
        """Of models that are being loaded, by name."""

    def send(self, event: str, model: str, data: Record | None = None) -> None:
        """Tell all listeners."""
        record: Record = {"model": model, "event": event}
        if data is not None:
            record["data"] = data
        for listener in self._listeners:
            listener.put(record)

    def status(self, model: str, value: str, **more: object) -> None:
        """Tell a model's status; one that is loading has progress until its next status."""
        if value == "loading":
            self.progress.setdefault(model, {})
        else:
            self.progress.pop(model, None)
        self.send("model_status", model, {"status": value, **more})

    def loading(self, model: str) -> Progress:
        """A function for the loading thread that tells listeners of progress."""
        loop, last = asyncio.get_running_loop(), [("", -1.0)]
        stages: list[str] = []

        def tell(what: str, share: float | None) -> None:
            if model in self.progress:  # else it has been loaded meanwhile
                value = {} if share is None else {"value": round(share, 4)}
                self.progress[model] = {"stages": [*stages], "current": what, **value}
                self.status(model, "loading", progress=self.progress[model])

        def progress(what: str, done: int, total: int) -> None:
            share = min(1.0, done / total) if total > 0 else None
            before, told = last[0]
            if what == before and (share is None or (share - told < LEAST_STEP and (share < 1 or told == 1))):
                return
            last[0] = what, -1.0 if share is None else share
            if what not in stages:
                stages.append(what)
            _soon(loop, lambda: tell(what, share))

        return progress

    def listen(self) -> Listener:
        """A listener to the events from now on."""
        listener = Listener(self._listeners.discard)
        self._listeners.add(listener)
        return listener

    def close(self) -> None:
        """End what listeners read."""
        for listener in self._listeners:
            listener.put(None)


def _soon(loop: asyncio.AbstractEventLoop, tell: Callable[[], None]) -> None:
    """Run something in the loop, unless the server has ended."""
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(tell)
