"""Models shared by several tabs: opened once, and closed when another model needs the memory.

In: settings, an object that shows progress. Out: models with a count of their users. The last model without users stays
open, so that reloading the page finds it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.app.opening.face import OpeningFace, WatchedFace
from edgeinfer.app.opening.model_choice import open_chosen
from edgeinfer.app.plans.fit import require_model_file
from edgeinfer.errors import EngineClosed
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.app.readings.service import Readings
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.session import Session

LOOK_S = 0.1
LAST_S = 2.0
"""Seconds to wait at shutdown for a model that is being opened to be released."""
Loading = Callable[[Path, Settings, OpeningFace], "LLM"]


@dataclass(slots=True, eq=False)
class SharedAnswer:
    """A running request. `was_alone`: no other request ran beside it, so its speed is the model's."""

    was_alone: bool = True


@dataclass(slots=True, eq=False)
class SharedModel:
    """An open model and its number of users. `wanted`: the path and settings it was opened with."""

    number: int
    llm: LLM
    wanted: tuple[object, ...]
    readings: Readings
    n_users: int = 0
    sessions: dict[int, Session] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _answering: list[SharedAnswer] = field(default_factory=list, init=False)

    @contextmanager
    def answering(self) -> Iterator[SharedAnswer]:
        """Register an answer of this model for the duration of the block."""
        entered = SharedAnswer()
        with self._lock:
            self._answering.append(entered)
            if len(self._answering) > 1:
                for each in self._answering:
                    each.was_alone = False
        try:
            yield entered
        finally:
            with self._lock:
                self._answering.remove(entered)


class SharedModels:
    """Hands out models and takes them back; callable from any thread."""

    def __init__(self, loading: Loading) -> None:
        """`loading`: opens a file with the given settings."""
        self._loading = loading
        self._lock = threading.Lock()  # protects the list
        self._opening = threading.Lock()  # one model is downloaded and opened at a time
        self._faces: list[WatchedFace] = []
        self._models: list[SharedModel] = []
        self._n_opened = 0
        self._closed = False

    def take(self, settings: Settings, face: WatchedFace) -> SharedModel:
        """Return a model with one more user, opening it if it is not open. Raises EdgeInferError, OpeningCalledOff."""
        with self._turn(face):
            return open_chosen(settings, lambda path: self._taken(path, settings, face), face)

    def release(self, shared: SharedModel) -> None:
        """Remove one user from a model."""
        with self._lock:
            shared.n_users -= 1
        self._close_unused(spared=shared)

    def find(self, number: int) -> SharedModel:
        """Look up an open model by number. Raises EngineClosed if it is closed."""
        with self._lock:
            found = next((each for each in self._models if each.number == number), None)
        if found is None:
            raise EngineClosed("the model is closed; open it again")
        return found

    def close(self) -> None:
        """Close all models, even those in use.

        A model that is opening ends at its next progress report, or with the process.
        """
        with self._lock:
            self._closed = True
            models, self._models = self._models, []
            faces = list(self._faces)
        for face in faces:
            face.call_off()
        for each in models:
            each.llm.close()
        if self._opening.acquire(timeout=LAST_S):
            self._opening.release()

    @contextmanager
    def _turn(self, face: WatchedFace) -> Iterator[None]:
        """Wait for the turn to open a model; it can be called off meanwhile. Raises EngineClosed, OpeningCalledOff."""
        with self._lock:
            self._check_open()
            self._faces.append(face)
        try:
            while not self._opening.acquire(timeout=LOOK_S):
                face.check()
            try:
                face.check()
                yield
            finally:
                self._opening.release()
        finally:
            with self._lock:
                self._faces.remove(face)

    def _check_open(self) -> None:
        """Raises EngineClosed after `close`."""
        if self._closed:
            raise EngineClosed("the engine ends")

    def _taken(self, path: Path, settings: Settings, face: WatchedFace) -> SharedModel:
        """The model at a path, with one more user."""
        wanted = (path, settings.load)
        return self._find(wanted) or self._open(path, settings, face, wanted)

    def _find(self, wanted: tuple[object, ...]) -> SharedModel | None:
        with self._lock:
            found = next((each for each in self._models if each.wanted == wanted), None)
            if found is not None:
                found.n_users += 1
            return found

    def _open(self, path: Path, settings: Settings, face: WatchedFace, wanted: tuple[object, ...]) -> SharedModel:
        require_model_file(path)  # a file that cannot be opened must not close another model
        self._close_unused(spared=None)
        face.found(path, settings)
        from edgeinfer.app.readings.service import Readings

        llm = self._loading(path, settings, face)
        try:
            face.check()
            with self._lock:
                self._check_open()
                self._n_opened += 1
                found = SharedModel(self._n_opened, llm, wanted, Readings(llm), n_users=1)
                self._models.append(found)
        except BaseException:
            llm.close()
            raise
        return found

    def _close_unused(self, spared: SharedModel | None) -> None:
        with self._lock:
            unused = [each for each in self._models if not each.n_users and each is not spared]
            self._models = [each for each in self._models if each not in unused]
        for each in unused:
            each.llm.close()
