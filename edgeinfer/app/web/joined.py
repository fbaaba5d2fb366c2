"""A model that runs in another process, as the app in this one sees it: the other side of `engine_host`.

In: where the engine is, settings. Out: what `tui.engine` calls a Model. Imports nothing that computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from edgeinfer.app.opening_face import WatchedFace
from edgeinfer.app.web.wire import (
    Address,
    Called,
    DownloadProgress,
    Ended,
    EngineGone,
    EngineOpened,
    Failed,
    Loading,
    Noted,
    PromptTokensRead,
    Returned,
    TextPiece,
    WantAnswer,
    WantModel,
    WantOptions,
    WantSession,
)
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.app.readings.records import Cores, DraftingReading, Energy, MemoryReading, PlanStrip, Roofline
    from edgeinfer.engine.model_info import ModelInfo
    from edgeinfer.engine.requests.conversation import FittedPrompt, Messages
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stats import DraftSpan, RequestProgress, Stats

LOOK_S = 0.1
"""How often it is looked whether opening was called off."""


class CallConnections:
    """Connections for calls: as many as threads call at a time."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._resting: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, called: Called) -> Any:
        """What a call comes to. Raises EdgeInferError."""
        with self._lock:
            connection = self._resting.pop() if self._resting else None
        connection = connection or self.address.connect()
        found = _said(connection, called)
        with self._lock:
            if not self._closed:
                self._resting.append(connection)
                return _value(found)
        connection.close()
        return _value(found)

    def close(self) -> None:
        """No more calls."""
        with self._lock:
            self._closed = True
            resting, self._resting = self._resting, []
        for each in resting:
            each.close()


class JoinedModel:
    """A model in the engine's process, ours as long as `lease` is open."""

    def __init__(self, address: Address, lease: Connection, opened: EngineOpened) -> None:
        self._address, self._lease, self._number = address, lease, opened.model
        self._asking = CallConnections(address)
        self._sessions: list[JoinedSession] = []
        facts: Any = opened.facts
        self.info: ModelInfo = facts
        self.prompts = JoinedPrompts(self._ask)
        self.readings = JoinedReadings(self._ask)

    def session(self) -> JoinedSession:
        """A new session. Raises EngineClosed."""
        session = JoinedSession(self._address, self._number)
        self._sessions.append(session)
        return session

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text."""
        found: list[int] = self._ask("tokenize", text, add_special, parse_special)
        return found

    def stop(self) -> None:
        """End every answer of ours within one step; from any thread."""
        for session in self._sessions:
            session.stop()

    def close(self) -> None:
        """Stop, and let go of the model."""
        self.stop()
        for session in self._sessions:
            session.close()
        self._asking.close()
        self._lease.close()

    def _ask(self, name: str, *arguments: object) -> Any:
        return self._asking.ask(Called(self._number, name, arguments))


class JoinedPrompts:
    """Makes prompts of conversations, where the model is."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def render(self, messages: Messages) -> str:
        found: str = self._ask("render", tuple(messages))
        return found

    def fitted(self, messages: Messages, max_tokens: int | None = None) -> FittedPrompt:
        found: FittedPrompt = self._ask("fitted", tuple(messages), max_tokens)
        return found

    def n_tokens(self, messages: Messages) -> int:
        found: int = self._ask("n_tokens", tuple(messages))
        return found


class JoinedReadings:
    """What the machine does, as the process says that computes."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def plan(self) -> PlanStrip:
        found: PlanStrip = self._ask("plan")
        return found

    def roofline(self) -> Roofline:
        found: Roofline = self._ask("roofline")
        return found

    def cores(self) -> Cores:
        found: Cores = self._ask("cores")
        return found

    def memory(self) -> MemoryReading:
        found: MemoryReading = self._ask("memory")
        return found

    def drafting(self) -> DraftingReading:
        found: DraftingReading = self._ask("drafting")
        return found

    def energy(self) -> Energy:
        found: Energy = self._ask("energy")
        return found

    def taken(self) -> tuple[int, int | None]:
        found: tuple[int, int | None] = self._ask("taken")
        return found

    @property
    def can_time_stages(self) -> bool:
        return bool(self._ask("can_time_stages"))

    def time_stages(self) -> bool:
        return bool(self._ask("time_stages"))

    def answered(self, stats: Stats) -> None:
        """The engine knows."""


class JoinedSession:
    """A session in the engine's process."""

    def __init__(self, address: Address, model: int) -> None:
        """Raises EngineClosed, EngineGone."""
        self._address, self._model = address, model
        self._lock = threading.Lock()
        self._stream: JoinedStream | None = None
        self._connection = address.connect()
        self._number: int = _value(_said(self._connection, WantSession(model)))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens in the cache."""
        found: tuple[int, ...] = self._ask("tokens")
        return found

    @property
    def saved_bytes(self) -> int | None:
        """About how many bytes `save` would write."""
        found: int | None = self._ask("saved_bytes")
        return found

    def save(self, path: str | Path) -> None:
        """Write what was read to a file."""
        self._ask("save", Path(path).absolute())

    def restore(self, path: str | Path) -> None:
        """Go on from a saved file."""
        self._ask("restore", Path(path).absolute())

    def chat(self, messages: Messages, **options: Unpack[Options]) -> JoinedStream:
        """Answer a conversation; nothing happens before the first piece is asked for."""
        progress = options.pop("progress", None)
        wanted = WantAnswer(self._model, self._number, tuple(messages), dict(options))
        self._stream = stream = JoinedStream(self._address, wanted, progress)
        return stream

    def stop(self) -> None:
        """End the running request."""
        if self._stream is not None:
            self._stream.stop()

    def close(self) -> None:
        """Give the session back."""
        with self._lock:
            self._connection.close()

    def _ask(self, name: str, *arguments: object) -> Any:
        with self._lock:
            return _value(_said(self._connection, Called(self._model, name, arguments)))


class JoinedStream:
    """An answer that is made in the engine's process. Iterate it once; `stop()` from any thread."""

    def __init__(self, address: Address, wanted: WantAnswer, progress: Callable[[str, int, int], None] | None) -> None:
        self._address, self._wanted, self._progress = address, wanted, progress
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._texts: list[str] = []
        self.marks: tuple[DraftSpan, ...] = ()
        self.stats: Stats | None = None
        self.live: RequestProgress | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def stop(self) -> None:
        """End the answer within a step; what there is of it stays."""
        with self._lock:
            if not self._stopped and self._connection is not None:
                with suppress(OSError):
                    self._connection.send(None)
            self._stopped = True

    def __iter__(self) -> Iterator[str]:
        """Pieces of text. Raises EdgeInferError."""
        connection = self._address.connect()
        try:
            with _gone():
                connection.send(self._wanted)
            with self._lock:
                self._connection = connection
                if self._stopped:
                    connection.send(None)
            yield from self._pieces(connection)
        finally:
            with self._lock:
                self._connection = None
                connection.close()

    def _pieces(self, connection: Connection) -> Iterator[str]:
        while True:
            with _gone():
                said = connection.recv()
            match said:
                case TextPiece():
                    if said.live is not None:
                        self._take_live(said.live)
                    self._texts.append(said.text)
                    yield said.text
                case PromptTokensRead() if self._progress is not None:
                    self._progress(said.what, said.done, said.total)
                case Ended():
                    self._end(said)
                    return
                case Failed():
                    raise said.error()

    def _take_live(self, live: Any) -> None:
        self.live = live

    def _end(self, ended: Ended) -> None:
        stats: Any = ended.stats
        marks: Any = ended.marks
        self.stats, self.marks = stats, marks
        self._take_live(ended.live)


def open_joined(address: Address, settings: Settings, face: WatchedFace) -> JoinedModel:
    """Have the engine open the model of these settings, shown on `face`. Raises EdgeInferError, OpeningCalledOff."""
    lease = address.connect()
    try:
        with _gone():
            lease.send(WantModel.of(settings, is_beside=face.is_beside))
        while True:
            with _gone():
                while not lease.poll(LOOK_S):
                    face.check()
                said = lease.recv()
            match said:
                case Loading():
                    with face.loading() as loading:
                        loading(said.what, said.done, said.total)
                case DownloadProgress():
                    with face.pulling(said.source) as pulling:
                        pulling(said.done_bytes, said.total_bytes, said.bytes_per_s)
                case Noted():
                    face.note(said.text)
                case EngineOpened():
                    return JoinedModel(address, lease, said)
                case Failed():
                    raise said.error()
    except BaseException:
        lease.close()
        raise


class Tab:
    """A process of its own for a tab, as long as the engine's process is there."""

    def __init__(self, address: Address) -> None:
        """Raises EngineGone."""
        self._connection = address.connect()
        self.options: dict[str, object] = _value(_said(self._connection, WantOptions()))

    def when_gone(self, leave: Callable[[], None]) -> None:
        """Call `leave`, from another thread, when the engine's process has ended."""

        def wait() -> None:
            with suppress(EOFError, OSError):
                self._connection.recv()
            leave()

        threading.Thread(target=wait, name="edgeinfer-engine-gone", daemon=True).start()


def _said(connection: Connection, said: object) -> object:
    with _gone():
        connection.send(said)
        found: object = connection.recv()
    return found


def _value(found: object) -> Any:
    """What was returned. Raises the error that was."""
    if isinstance(found, Failed):
        raise found.error()
    assert isinstance(found, Returned)
    return found.value


@contextmanager
def _gone() -> Iterator[None]:
    """Raises EngineGone for a connection that has ended."""
    try:
        yield
    except (OSError, EOFError) as reason:
        raise EngineGone from reason
