"""A tab's view of a model that runs in the engine's process: the counterpart of `engine_host`.

In: the engine's address, settings. Out: an implementation of `tui.engine`'s Model. Computes nothing itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from edgeinfer.app.opening.face import WatchedFace
from edgeinfer.app.readings.records import Cores, DraftingReading, Energy, MemoryReading, PlanStrip, Roofline
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
    Stop,
    TextPiece,
    WantAnswer,
    WantModel,
    WantSession,
)
from edgeinfer.ipc.channel import Channel
from edgeinfer.ipc.records import read_as
from edgeinfer.models.text import Message
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.engine.model_info import ModelInfo
    from edgeinfer.engine.requests.conversation import FittedPrompt, Messages
    from edgeinfer.engine.requests.request import Options
    from edgeinfer.engine.scheduler.stats import DraftSpan, RequestProgress, Stats
    from edgeinfer.models.text.answer_reader import AnswerReader
    from edgeinfer.models.text.tools import ToolCall

LOOK_S = 0.1
"""Seconds between two checks whether opening was cancelled."""
T = TypeVar("T")


class AskEngine(Protocol):
    """Calls the model in the engine's process and returns the result as the given type."""

    def __call__(self, kind: type[T], name: str, *arguments: object) -> T: ...


class CallConnections:
    """A pool of connections for calls, one for each thread that is calling."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._resting: list[Channel] = []
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, called: Called) -> object:
        """Make a call and return its result. Raises EdgeInferError."""
        with self._lock:
            connection = self._resting.pop() if self._resting else None
        connection = connection or self.address.connect()
        reply = _reply(connection, called)
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                self._resting.append(connection)
        if is_closed:
            connection.close()
        return _value(reply)

    def close(self) -> None:
        """Close the connections; those in use are closed when their call returns."""
        with self._lock:
            self._closed = True
            resting, self._resting = self._resting, []
        for each in resting:
            each.close()


class JoinedModel:
    """A model in the engine's process; this tab uses it as long as `lease` is open."""

    def __init__(self, address: Address, lease: Channel, opened: EngineOpened) -> None:
        self._address, self._lease, self._number = address, lease, opened.model
        self._asking = CallConnections(address)
        self._sessions: list[JoinedSession] = []
        from edgeinfer.engine.model_info import ModelInfo

        self.info: ModelInfo = read_as(ModelInfo, opened.facts)
        self.prompts = JoinedPrompts(self._ask)
        self.readings = JoinedReadings(self._ask)

    def session(self) -> JoinedSession:
        """Open a new session. Raises EngineClosed."""
        session = JoinedSession(self._address, self._number)
        self._sessions.append(session)
        return session

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Tokenize a text."""
        return self._ask(list[int], "tokenize", text, add_special, parse_special)

    def stop(self) -> None:
        """End all of this tab's answers within one step; callable from any thread."""
        for session in self._sessions:
            session.stop()

    def close(self) -> None:
        """Stop all answers and release the model."""
        self.stop()
        for session in self._sessions:
            session.close()
        self._asking.close()
        self._lease.close()

    def _ask(self, kind: type[T], name: str, *arguments: object) -> T:
        result: T = read_as(kind, self._asking.ask(Called(self._number, name, arguments)))
        return result


class JoinedPrompts:
    """Renders prompts of conversations in the engine's process."""

    def __init__(self, ask: AskEngine) -> None:
        self._ask = ask

    def render(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        return self._ask(str, "render", _records(messages), tools, dict(variables))

    def fitted(self, messages: Messages, max_tokens: int | None = None) -> FittedPrompt:
        from edgeinfer.engine.requests.conversation import FittedPrompt

        return self._ask(FittedPrompt, "fitted", _records(messages), max_tokens)

    def n_tokens(self, messages: Messages, options: Options | None = None) -> int:
        return self._ask(int, "n_tokens", _records(messages), options)


class JoinedReadings:
    """Machine readings, taken in the engine's process."""

    def __init__(self, ask: AskEngine) -> None:
        self._ask = ask

    def plan(self) -> PlanStrip:
        return self._ask(PlanStrip, "plan")

    def roofline(self) -> Roofline:
        return self._ask(Roofline, "roofline")

    def cores(self) -> Cores:
        return self._ask(Cores, "cores")

    def memory(self) -> MemoryReading:
        return self._ask(MemoryReading, "memory")

    def drafting(self) -> DraftingReading:
        return self._ask(DraftingReading, "drafting")

    def energy(self) -> Energy:
        return self._ask(Energy, "energy")

    def taken(self) -> tuple[int, int | None]:
        return self._ask(tuple[int, int | None], "taken")

    @property
    def can_time_stages(self) -> bool:
        return self._ask(bool, "can_time_stages")

    def time_stages(self) -> bool:
        return self._ask(bool, "time_stages")

    def answered(self, stats: Stats) -> None:
        """Does nothing: the engine's process notes answers itself."""


class JoinedSession:
    """A session in the engine's process."""

    def __init__(self, address: Address, model: int) -> None:
        """Raises EngineClosed, EngineGone."""
        self._address, self._model = address, model
        self._lock = threading.Lock()
        self._stream: JoinedStream | None = None
        self._connection = address.connect()
        self._number: int = read_as(int, ask(self._connection, WantSession(model)))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens in the KV cache."""
        return self._ask(tuple[int, ...], "tokens")

    @property
    def saved_bytes(self) -> int | None:
        """Approximate number of bytes that `save` would write."""
        saved: int | None = read_as(int | None, self._call("saved_bytes"))
        return saved

    def save(self, path: str | Path) -> None:
        """Write the KV cache to a file."""
        self._call("save", str(Path(path).absolute()))

    def restore(self, path: str | Path) -> None:
        """Continue from a saved file."""
        self._call("restore", str(Path(path).absolute()))

    def chat(self, messages: Messages, **options: Unpack[Options]) -> JoinedStream:
        """Answer a conversation; nothing happens until the first piece is requested."""
        progress = options.pop("progress", None)
        request = WantAnswer(self._model, self._number, _records(messages), dict(options))
        self._stream = stream = JoinedStream(self._address, request, progress)
        return stream

    def stop(self) -> None:
        """End the running request."""
        if self._stream is not None:
            self._stream.stop()

    def close(self) -> None:
        """Close the session."""
        with self._lock:
            self._connection.close()

    def _ask(self, kind: type[T], name: str) -> T:
        result: T = read_as(kind, self._call(name))
        return result

    def _call(self, name: str, *arguments: object) -> object:
        with self._lock:
            return ask(self._connection, Called(self._model, name, arguments))


class JoinedStream:
    """An answer generated in the engine's process. Iterate it once; `stop()` may be called from any thread.

    The chats of tabs have no tools: there is no reader of calls.
    """

    reader: AnswerReader | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning = ""

    def __init__(self, address: Address, request: WantAnswer, progress: Callable[[str, int, int], None] | None) -> None:
        self._address, self._request, self._progress = address, request, progress
        self._connection: Channel | None = None
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

    @property
    def content(self) -> str:
        """The text so far."""
        return self.text

    def stop(self) -> None:
        """End the answer within a step; the text so far remains available."""
        with self._lock:
            if not self._stopped and self._connection is not None:
                with suppress(OSError):
                    self._connection.send(Stop())
            self._stopped = True

    def __iter__(self) -> Iterator[str]:
        """Yield pieces of text. Raises EdgeInferError."""
        connection = self._address.connect()
        try:
            with _gone():
                connection.send(self._request)
            with self._lock:
                self._connection = connection
                if self._stopped:
                    connection.send(Stop())
            yield from self._pieces(connection)
        finally:
            with self._lock:
                self._connection = None
                connection.close()

    def _pieces(self, connection: Channel) -> Iterator[str]:
        while True:
            with _gone():
                message = connection.receive(TextPiece, PromptTokensRead, Ended, Failed)
            match message:
                case TextPiece(text, live):
                    if live is not None:
                        self._take_live(live)
                    self._texts.append(text)
                    yield text
                case PromptTokensRead(what, done, total) if self._progress is not None:
                    self._progress(what, done, total)
                case Ended():
                    self._end(message)
                    return
                case Failed():
                    raise message.error()

    def _take_live(self, live: object) -> None:
        from edgeinfer.engine.scheduler.stats import RequestProgress

        self.live = read_as(RequestProgress, live)

    def _end(self, ended: Ended) -> None:
        from edgeinfer.engine.scheduler.stats import DraftSpan, Stats

        self.stats, self.marks = read_as(Stats, ended.stats), read_as(tuple[DraftSpan, ...], ended.marks)
        self._take_live(ended.live)


def open_joined(address: Address, settings: Settings, face: WatchedFace) -> JoinedModel:
    """Have the engine open the model of these settings and show progress on `face`.

    Raises EdgeInferError, OpeningCalledOff.
    """
    lease = address.connect()
    try:
        with _gone():
            lease.send(WantModel.of(settings, is_beside=face.is_beside))
        while True:
            with _gone():
                while not lease.poll(LOOK_S):
                    face.check()
                message = lease.receive(Loading, DownloadProgress, Noted, EngineOpened, Failed)
            match message:
                case Loading(what, done, total):
                    with face.loading() as loading:
                        loading(what, done, total)
                case DownloadProgress(source, done_bytes, total_bytes, bytes_per_s):
                    with face.pulling(source) as pulling:
                        pulling(done_bytes, total_bytes, bytes_per_s)
                case Noted(text):
                    face.note(text)
                case EngineOpened():
                    return JoinedModel(address, lease, message)
                case Failed():
                    raise message.error()
    except BaseException:
        lease.close()
        raise


def _records(messages: Messages) -> tuple[dict[str, Any], ...]:
    """Convert messages to plain mappings."""
    checked = map(Message.of, messages)
    return tuple({"role": message.role, "content": message.content, **message.extra} for message in checked)


def ask(connection: Channel, request: object) -> object:
    """Send a request and return its result. Raises EngineGone, or the error that the reply carries."""
    return _value(_reply(connection, request))


def _reply(connection: Channel, request: object) -> Returned | Failed:
    with _gone():
        connection.send(request)
        reply = connection.receive(Returned, Failed)
    assert isinstance(reply, Returned | Failed)
    return reply


def _value(reply: Returned | Failed) -> object:
    """Return the reply's value, or raise the error that it carries."""
    if isinstance(reply, Failed):
        raise reply.error()
    return reply.value


@contextmanager
def _gone() -> Iterator[None]:
    """Raises EngineGone if the connection has ended."""
    try:
        yield
    except (OSError, EOFError) as reason:
        raise EngineGone from reason
