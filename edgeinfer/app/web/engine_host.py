"""The engine that tabs share: accepts connections and serves each in its own thread.

In: a listener, models. Out: replies to tabs. When a connection ends, what it held is released: the model it opened or
the answer it was receiving. Does not depend on screens or browsers.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from multiprocessing.connection import Client, Listener
from typing import TYPE_CHECKING, Any, cast

from edgeinfer.app.opening.face import OpeningCalledOff, WatchedFace
from edgeinfer.app.opening.loading import note_answer
from edgeinfer.app.plans.fit import approve_quietly
from edgeinfer.app.web import wire
from edgeinfer.app.web.shared_models import SharedModels
from edgeinfer.errors import EdgeInferError, EngineClosed
from edgeinfer.ipc.channel import Channel

if TYPE_CHECKING:
    from edgeinfer.engine.requests.conversation import Messages
    from edgeinfer.engine.scheduler.stats import RequestProgress

PAUSE_S = 0.01
LAST_S = 5.0
"""Seconds for the other side to receive the last message."""
LIVE_S = 0.2
"""Seconds between two updates of an answer's statistics."""
OF_PROMPTS = frozenset({"render", "fitted", "n_tokens"})
OF_READINGS = frozenset({"plan", "roofline", "cores", "memory", "drafting", "energy", "taken", "time_stages"})
TOLD_BY_READINGS = frozenset({"can_time_stages"})
OF_SESSIONS = frozenset({"save", "restore"})
TOLD_BY_SESSIONS = frozenset({"tokens", "saved_bytes"})


class EngineHost:
    """Serves tabs until it is closed."""

    def __init__(self, listener: Listener, models: SharedModels, options: Mapping[str, object]) -> None:
        """`options`: options of a tab's app by name."""
        self._listener, self._models, self._options = listener, models, dict(options)
        self._closed = False
        self._session_numbers = itertools.count(1)
        threading.Thread(target=self._accept, name="edgeinfer-tabs", daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections and close all models, which ends their answers."""
        self._closed = True
        with suppress(OSError, EOFError):
            Client(self._listener.address).close()  # wakes `_accept`, which waits for a connection
        self._listener.close()
        self._models.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except Exception:  # a client without the key, or one that disconnected
                time.sleep(PAUSE_S)
                continue
            threading.Thread(target=self._serve, args=(Channel(connection),), name="edgeinfer-tab", daemon=True).start()

    def _serve(self, channel: Channel) -> None:
        """Serve a connection according to its first message."""
        with channel, suppress(EOFError, OSError, ValueError):
            match channel.receive(wire.WantOptions, wire.WantModel, wire.WantSession, wire.WantAnswer, wire.Called):
                case wire.WantOptions():
                    channel.send(wire.Returned(self._options))
                    channel.receive(wire.Stop)
                case wire.WantModel() as request:
                    self._lend(channel, request)
                case wire.WantSession() as request:
                    self._keep_session(channel, request)
                case wire.WantAnswer() as request:
                    self._answer(channel, request)
                case wire.Called() as called:
                    while True:
                        channel.send(_outcome(self._call, called))
                        called = channel.receive(wire.Called)

    def _lend(self, channel: Channel, request: wire.WantModel) -> None:
        """Open a model for a tab and keep it until the connection ends."""
        face = WatchedFace(
            lambda *progress: channel.send(wire.Loading(*progress)),
            lambda *progress: channel.send(wire.DownloadProgress(*progress)),
            approve_quietly,
            lambda text: channel.send(wire.Noted(text)),
            is_beside=request.is_beside,
        )
        over = _when_stopped(channel, face.call_off)
        try:
            shared = self._models.take(request.settings, face)
        except OpeningCalledOff:
            return
        except Exception as error:
            channel.send(wire.Failed.of(error))
            over.wait(LAST_S)
            return
        try:
            channel.send(wire.EngineOpened(shared.number, shared.llm.info))
            over.wait()
        finally:
            self._models.release(shared)

    def _call(self, called: wire.Called) -> object:
        """Call a model and return the result. Raises EdgeInferError."""
        shared, name = self._models.find(called.model), called.name
        if name in OF_PROMPTS:
            return getattr(shared.llm.prompts, name)(*called.arguments)
        if name in OF_READINGS:
            return getattr(shared.readings, name)(*called.arguments)
        if name in TOLD_BY_READINGS:
            return getattr(shared.readings, name)
        if name == "tokenize":
            text, add_special, parse_special = called.arguments
            return shared.llm.tokenize(str(text), add_special=bool(add_special), parse_special=bool(parse_special))
        raise EdgeInferError(f"models are not asked for {name!r}")

    def _keep_session(self, channel: Channel, request: wire.WantSession) -> None:
        """Open a session for a tab and serve its calls until the connection ends."""
        try:
            shared = self._models.find(request.model)
            session = shared.llm.session()
        except Exception as error:
            channel.send(wire.Failed.of(error))
            return
        number = next(self._session_numbers)
        shared.sessions[number] = session

        def call(called: wire.Called) -> object:
            if called.name in OF_SESSIONS:
                return getattr(session, called.name)(*called.arguments)
            if called.name in TOLD_BY_SESSIONS:
                return getattr(session, called.name)
            raise EdgeInferError(f"sessions are not asked for {called.name!r}")

        try:
            channel.send(wire.Returned(number))
            while True:
                channel.send(_outcome(call, channel.receive(wire.Called)))
        finally:
            del shared.sessions[number]
            session.close()

    def _answer(self, channel: Channel, request: wire.WantAnswer) -> None:
        """Answer a conversation piece by piece until it ends, the tab stops it or the tab disconnects."""
        relay = AnswerRelay(channel)
        options: Any = {**request.options, "progress": relay.read}
        try:
            shared = self._models.find(request.model)
            session = shared.sessions.get(request.session)
            if session is None:
                raise EngineClosed("the session is closed")
            stream = session.chat(cast("Messages", request.messages), **options)
            over = _when_stopped(channel, stream.stop)
            with shared.answering() as answering, closing(stream):
                for piece in stream:
                    relay.piece(piece, stream.live)
        except Exception as error:
            channel.send(wire.Failed.of(error))
            return
        stats = stream.stats
        assert stats is not None
        channel.send(wire.Ended(stats, stream.marks, stream.live))
        shared.readings.answered(stats)
        if answering.was_alone:
            note_answer(shared.llm, stats)
        over.wait(LAST_S)


class AnswerRelay:
    """Sends the progress of a running request."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sent_s = -LIVE_S

    def read(self, what: str, done: int, total: int) -> None:
        """Report that prompt tokens were read. A tab that disconnects stops its answer, so errors are ignored here."""
        with suppress(OSError):  # an error would end a pass that serves other answers too
            self._channel.send(wire.PromptTokensRead(what, done, total))

    def piece(self, text: str, live: RequestProgress) -> None:
        """Send more text."""
        now = time.monotonic()
        is_due = now - self._sent_s >= LIVE_S
        self._channel.send(wire.TextPiece(text, live if is_due else None))
        if is_due:
            self._sent_s = now


def _outcome(call: Callable[[wire.Called], object], called: wire.Called) -> wire.Returned | wire.Failed:
    try:
        return wire.Returned(call(called))
    except Exception as error:
        return wire.Failed.of(error)


def _when_stopped(channel: Channel, do: Callable[[], None]) -> threading.Event:
    """Call `do` when the other side sends a message or disconnects; returns an event that is set after that."""
    over = threading.Event()

    def wait() -> None:
        with suppress(EOFError, OSError, ValueError, TypeError):  # TypeError: the channel was closed here
            channel.receive(wire.Stop)
        do()
        over.set()

    threading.Thread(target=wait, name="edgeinfer-tab-ends", daemon=True).start()
    return over
