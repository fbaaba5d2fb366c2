"""The engine that tabs share: it takes connections, and does for each what it is there for, in a thread of its own.

In: a listener, models. Out: answers to what tabs want. A connection that ends takes with it what it held: the model
it opened, the answer it listened to. Knows no screens and no browsers.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any, cast

from edgeinfer.app.fit import approve_quietly
from edgeinfer.app.opening import note_answer
from edgeinfer.app.opening_face import OpeningCalledOff, WatchedFace
from edgeinfer.app.web.shared_models import SharedModels
from edgeinfer.app.web.wire import (
    Called,
    DownloadProgress,
    Ended,
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
from edgeinfer.errors import EdgeInferError, EngineClosed

if TYPE_CHECKING:
    from edgeinfer.engine.requests.conversation import Messages
    from edgeinfer.engine.scheduler.stats import RequestProgress

PAUSE_S = 0.01
LAST_S = 5.0
"""For the other side to take what was said last."""
LIVE_S = 0.2
"""How often an answer's numbers are told."""
OF_PROMPTS = frozenset({"render", "fitted", "n_tokens"})
OF_READINGS = frozenset({"plan", "roofline", "cores", "memory", "drafting", "energy", "taken", "time_stages"})
TOLD_BY_READINGS = frozenset({"can_time_stages"})
OF_SESSIONS = frozenset({"save", "restore"})
TOLD_BY_SESSIONS = frozenset({"tokens", "saved_bytes"})


class EngineHost:
    """Serves until it is closed."""

    def __init__(self, listener: Listener, models: SharedModels, options: Mapping[str, object]) -> None:
        """`options`: of a tab's app, by name."""
        self._listener, self._models, self._options = listener, models, dict(options)
        self._closed = False
        self._session_numbers = itertools.count(1)
        threading.Thread(target=self._accept, name="edgeinfer-tabs", daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and close all models: what is under way ends."""
        self._closed = True
        with suppress(OSError, EOFError):
            Client(self._listener.address).close()  # who accepts connections waits for one
        self._listener.close()
        self._models.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except Exception:  # who does not know the key, or has gone already, is no reason to serve nobody
                time.sleep(PAUSE_S)
                continue
            threading.Thread(target=self._serve, args=(connection,), name="edgeinfer-tab", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        """Do what a connection is there for."""
        with connection, suppress(EOFError, OSError):
            match connection.recv():
                case WantOptions():
                    connection.send(Returned(self._options))
                    connection.recv()
                case WantModel() as wanted:
                    self._lend(connection, wanted)
                case WantSession() as wanted:
                    self._keep_session(connection, wanted)
                case WantAnswer() as wanted:
                    self._answer(connection, wanted)
                case Called() as called:
                    while True:
                        connection.send(_outcome(self._call, called))
                        called = connection.recv()

    def _lend(self, connection: Connection, wanted: WantModel) -> None:
        """Open a model for somebody, who has it until the connection ends."""
        face = WatchedFace(
            lambda *progress: connection.send(Loading(*progress)),
            lambda *progress: connection.send(DownloadProgress(*progress)),
            approve_quietly,
            lambda text: connection.send(Noted(text)),
            is_beside=wanted.is_beside,
        )
        over = _when_something_comes(connection, face.call_off)
        try:
            shared = self._models.take(wanted.settings, face)
        except OpeningCalledOff:
            return
        except Exception as error:
            connection.send(Failed.of(error))
            over.wait(LAST_S)
            return
        try:
            connection.send(EngineOpened(shared.number, shared.llm.info))
            over.wait()
        finally:
            self._models.release(shared)

    def _call(self, called: Called) -> object:
        """What a call of a model comes to. Raises EdgeInferError."""
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

    def _keep_session(self, connection: Connection, wanted: WantSession) -> None:
        """Open a session for somebody, and do what is asked of it until the connection ends."""
        try:
            shared = self._models.find(wanted.model)
            session = shared.llm.session()
        except Exception as error:
            connection.send(Failed.of(error))
            return
        number = next(self._session_numbers)
        shared.sessions[number] = session

        def call(called: Called) -> object:
            if called.name in OF_SESSIONS:
                return getattr(session, called.name)(*called.arguments)
            if called.name in TOLD_BY_SESSIONS:
                return getattr(session, called.name)
            raise EdgeInferError(f"sessions are not asked for {called.name!r}")

        try:
            connection.send(Returned(number))
            while True:
                connection.send(_outcome(call, connection.recv()))
        finally:
            del shared.sessions[number]
            session.close()

    def _answer(self, connection: Connection, wanted: WantAnswer) -> None:
        """Answer a conversation, piece by piece; stopped by whatever is said, and by who does not listen any more."""
        told = AnswerRelay(connection)
        options: Any = {**wanted.options, "progress": told.read}
        try:
            shared = self._models.find(wanted.model)
            session = shared.sessions.get(wanted.session)
            if session is None:
                raise EngineClosed("the session is closed")
            stream = session.chat(cast("Messages", wanted.messages), **options)
            over = _when_something_comes(connection, stream.stop)
            with shared.answering() as answering, closing(stream):
                for piece in stream:
                    told.piece(piece, stream.live)
        except Exception as error:
            connection.send(Failed.of(error))
            return
        stats = stream.stats
        assert stats is not None
        connection.send(Ended(stats, stream.marks, stream.live))
        shared.readings.answered(stats)
        if answering.was_alone:
            note_answer(shared.llm, stats)
        over.wait(LAST_S)


class AnswerRelay:
    """What is told of a running request."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._told_s = -LIVE_S

    def read(self, what: str, done: int, total: int) -> None:
        """So much of the prompt is read. Who has gone is told no more, and has stopped the answer by that."""
        with suppress(OSError):  # it would end the pass, which others' answers are part of
            self._connection.send(PromptTokensRead(what, done, total))

    def piece(self, text: str, live: RequestProgress) -> None:
        """There is more text."""
        now = time.monotonic()
        is_due = now - self._told_s >= LIVE_S
        self._connection.send(TextPiece(text, live if is_due else None))
        if is_due:
            self._told_s = now


def _outcome(call: Callable[[Called], object], called: Called) -> Returned | Failed:
    try:
        return Returned(call(called))
    except Exception as error:
        return Failed.of(error)


def _when_something_comes(connection: Connection, do: Callable[[], None]) -> threading.Event:
    """Do this when something is said, or the other side has gone; set then."""
    over = threading.Event()

    def wait() -> None:
        with suppress(EOFError, OSError, TypeError):  # TypeError: it was closed here meanwhile
            connection.recv()
        do()
        over.set()

    threading.Thread(target=wait, name="edgeinfer-tab-ends", daemon=True).start()
    return over
