"""Messages between tabs and the engine's process, and the address at which tabs reach it.

In and out: records over local connections that only this user can open. Each connection serves one purpose: calls, one
after another; a model for as long as it is needed; or one answer. Closing it cancels that. Does not depend on engines
or screens.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Listener
from typing import Self

from edgeinfer.app.web import VARIABLE
from edgeinfer.errors import EdgeInferError
from edgeinfer.ipc.channel import Channel, LocalListener, error_of
from edgeinfer.ipc.records import Plain
from edgeinfer.settings import Settings


class EngineGone(EdgeInferError):
    """The process that runs the model has ended."""

    def __init__(self) -> None:
        super().__init__("the process that runs the model has ended; reload the page to start again")


@dataclass(frozen=True, slots=True)
class Address:
    """The engine's address: the path of a socket or the name of a pipe, and the key."""

    path: str
    key: bytes

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> Self | None:
        """The address given to this process, removed from its environment; None if there is none."""
        value = environ.pop(VARIABLE, None)
        if value is None:
            return None
        key, _, path = value.partition(":")
        return cls(path, bytes.fromhex(key))

    def put_into(self, environ: MutableMapping[str, str]) -> None:
        """Put the address into the environment that tabs are started with."""
        environ[VARIABLE] = f"{self.key.hex()}:{self.path}"

    def connect(self) -> Channel:
        """Open a new connection. Raises EngineGone."""
        try:
            return Channel(Client(self.path, authkey=self.key))
        except (OSError, EOFError) as reason:
            raise EngineGone from reason


def listen() -> tuple[Listener, Address]:
    """Create a listener for tabs and its address. Raises BadSetting if no socket can be made."""
    key = secrets.token_bytes(32)
    listener = LocalListener(key)
    address = listener.address
    assert isinstance(address, str), "only Unix sockets and named pipes are default families"
    return listener, Address(address, key)


@dataclass(frozen=True, slots=True)
class Failed:
    """An error as a record: the name of its edgeinfer class, and its message."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Make the record of an error."""
        if isinstance(error, EdgeInferError):
            return cls(type(error).__name__, str(error))
        return cls("EdgeInferError", f"the engine failed: {type(error).__name__}: {error}")

    def error(self) -> EdgeInferError:
        """Recreate the error from the record."""
        return error_of(self.kind, self.message) or EdgeInferError(self.message)


@dataclass(frozen=True, slots=True)
class Called:
    """Call a method of a model, or of the session on a session's connection; answered by `Returned` or `Failed`."""

    model: int
    name: str
    arguments: tuple[Plain, ...] = ()


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a call; the caller knows its type."""

    value: Plain


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop what this connection was opened for."""


@dataclass(frozen=True, slots=True)
class WantOptions:
    """Ask for the options of a tab's app; the connection ends when the engine's process does."""


@dataclass(frozen=True, slots=True)
class WantModel:
    """Open the model of these settings and keep it until this connection is closed.

    `is_beside`: open it only if there is room beside the model that the tab already has open.
    """

    settings: Settings
    is_beside: bool = False

    @classmethod
    def of(cls, settings: Settings, *, is_beside: bool = False) -> Self:
        """Settings are sent without their origins."""
        return cls(replace(settings, origins={}), is_beside)


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of loading."""

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Progress of a download."""

    source: str
    done_bytes: int
    total_bytes: int | None
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Noted:
    """A line of text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class EngineOpened:
    """A model is open: its number and its `ModelInfo`."""

    model: int
    facts: Plain


@dataclass(frozen=True, slots=True)
class WantSession:
    """Open a session and keep it until this connection is closed; answered by its number."""

    model: int


@dataclass(frozen=True, slots=True)
class WantAnswer:
    """Answer a conversation on a session; `Stop` stops it."""

    model: int
    session: int
    messages: tuple[Mapping[str, object], ...]
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PromptTokensRead:
    """Progress of reading the prompt, in tokens."""

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More text, and the `RequestProgress` if some time has passed since it was last sent."""

    text: str
    live: Plain = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer has ended: its `Stats`, `DraftSpan`s and `RequestProgress`."""

    stats: Plain
    marks: Plain
    live: Plain
