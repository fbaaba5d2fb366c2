"""Models that several tabs use: opened once, whoever asks for them, and closed when something else needs the room.

In: settings, who looks on. Out: models, counted by who uses them. Of those that nobody uses the last one stays open, so
that a page that is loaded again has it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.app.fit import require_model_file
from edgeinfer.app.model_choice import open_chosen
from edgeinfer.app.opening_face import OpeningFace, WatchedFace
from edgeinfer.errors import EngineClosed
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.app.readings.service import Readings
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.session import Session

LOOK_S = 0.1
LAST_S = 2.0
"""For a model that is being opened to be let go of."""
Loading = Callable[[Path, Settings, OpeningFace], "LLM"]


@dataclass(slots=True, eq=False)
class SharedAnswer:
    """A running request, and whether none was made beside it: only then its speed is the model's."""

    was_alone: bool = True


@dataclass(slots=True, eq=False)
class SharedModel:
    """An open model, and how many use it. `wanted`: what it was opened with."""

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
        """While an answer of it is made."""
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
    """Take a model, release it. From any thread."""

    def __init__(self, loading: Loading) -> None:
        """`loading`: opens a file as settings say."""
        self._loading = loading
        self._lock = threading.Lock()  # of the list
        self._opening = threading.Lock()  # one model is fetched and opened at a time
        self._faces: list[WatchedFace] = []
        self._models: list[SharedModel] = []
        self._n_opened = 0
        self._closed = False

    def take(self, settings: Settings, face: WatchedFace) -> SharedModel:
        """A model, opened now unless it is. Raises EdgeInferError, and OpeningCalledOff."""
        with self._turn(face):
            return open_chosen(settings, lambda path: self._taken(path, settings, face), face)

    def release(self, shared: SharedModel) -> None:
        """One uses it no more."""
        with self._lock:
            shared.n_users -= 1
        self._close_unused(spared=shared)

    def find(self, number: int) -> SharedModel:
        """An open model. Raises EngineClosed."""
        with self._lock:
            found = next((each for each in self._models if each.number == number), None)
        if found is None:
            raise EngineClosed("the model is closed; open it again")
        return found

    def close(self) -> None:
        """Close all, whoever uses them; what is being opened ends at its next report, or with the process."""
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
        """The right to open a model, and to be called off. Raises EngineClosed, OpeningCalledOff."""
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
        """Raises EngineClosed."""
        if self._closed:
            raise EngineClosed("the engine ends")

    def _taken(self, path: Path, settings: Settings, face: WatchedFace) -> SharedModel:
        """The model at a path, with one user more."""
        wanted = (path, settings.load)
        return self._find(wanted) or self._open(path, settings, face, wanted)

    def _find(self, wanted: tuple[object, ...]) -> SharedModel | None:
        with self._lock:
            found = next((each for each in self._models if each.wanted == wanted), None)
            if found is not None:
                found.n_users += 1
            return found

    def _open(self, path: Path, settings: Settings, face: WatchedFace, wanted: tuple[object, ...]) -> SharedModel:
        require_model_file(path)  # one that cannot be opened closes no other
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
