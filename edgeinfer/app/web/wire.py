"""What tabs and the engine's process say to each other: records over local connections that only this user can open.

In and out: plain records. A connection is for one thing: calls that answer one after another, a model as long as it is
needed, or one answer. Whoever closes it wants no more of that. Knows neither engines nor screens.
"""

from __future__ import annotations

import secrets
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection, Listener
from typing import Self

from edgeinfer import errors
from edgeinfer.app.web import VARIABLE
from edgeinfer.errors import EdgeInferError
from edgeinfer.local_socket import LocalListener
from edgeinfer.settings import Settings


class EngineGone(EdgeInferError):
    """The process that runs the model has ended."""

    def __init__(self) -> None:
        super().__init__("the process that runs the model has ended; reload the page to start again")


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine is reached: a path of a socket or the name of a pipe, and the key."""

    path: str
    key: bytes

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str]) -> Self | None:
        """The address that this process was given, which its own children are not to see; None where it has none."""
        found = environ.pop(VARIABLE, None)
        if found is None:
            return None
        key, _, path = found.partition(":")
        return cls(path, bytes.fromhex(key))

    def tell(self, environ: MutableMapping[str, str]) -> None:
        """Put it into the environment that tabs are started with."""
        environ[VARIABLE] = f"{self.key.hex()}:{self.path}"

    def connect(self) -> Connection:
        """A new connection. Raises EngineGone."""
        try:
            return Client(self.path, authkey=self.key)
        except (OSError, EOFError) as reason:
            raise EngineGone from reason


def listen() -> tuple[Listener, Address]:
    """Somewhere to be reached: in a folder of this user's alone, where the system has such sockets.

    Raises BadSetting where no socket can be made there.
    """
    key = secrets.token_bytes(32)
    listener = LocalListener(key)
    address = listener.address
    assert isinstance(address, str), "only Unix sockets and named pipes are default families"
    return listener, Address(address, key)


@dataclass(frozen=True, slots=True)
class Failed:
    """Something went wrong: the name of an error of ours, and its message."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> Self:
        """What is told of an error."""
        if isinstance(error, EdgeInferError):
            return cls(type(error).__name__, str(error))
        return cls("EdgeInferError", f"the engine failed: {type(error).__name__}: {error}")

    def error(self) -> EdgeInferError:
        """The error again."""
        kind = getattr(errors, self.kind, EdgeInferError)
        known = isinstance(kind, type) and issubclass(kind, EdgeInferError)
        found: EdgeInferError = kind(self.message) if known else EdgeInferError(self.message)
        return found


@dataclass(frozen=True, slots=True)
class Called:
    """Call this of a model, or on a session's connection of the session; answered by what it returns or `Failed`."""

    model: int
    name: str
    arguments: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Returned:
    """What a call returned."""

    value: object


@dataclass(frozen=True, slots=True)
class WantOptions:
    """Tell a tab the options of its app; the connection stays, and ends when the engine's process does."""


@dataclass(frozen=True, slots=True)
class WantModel:
    """Open the model of these settings, and keep it until this connection is closed.

    `is_beside`: only if there is room for it beside the model that the tab has open.
    """

    settings: Settings
    is_beside: bool = False

    @classmethod
    def of(cls, settings: Settings, *, is_beside: bool = False) -> Self:
        """Where settings came from does not matter here."""
        cost = settings.load.verify_cost
        load = replace(settings.load, verify_cost=None if cost is None else dict(cost))
        return cls(replace(settings, load=load, origins={}), is_beside)


@dataclass(frozen=True, slots=True)
class Loading:
    """How far loading is."""

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download is."""

    source: str
    done_bytes: int
    total_bytes: int | None
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Noted:
    """A line that the user should know of."""

    text: str


@dataclass(frozen=True, slots=True)
class EngineOpened:
    """A model is open, and called so; what is told of it."""

    model: int
    facts: object


@dataclass(frozen=True, slots=True)
class WantSession:
    """Open a session, and keep it until this connection is closed; answered by its number."""

    model: int


@dataclass(frozen=True, slots=True)
class WantAnswer:
    """Answer a conversation on a session; anything that is said meanwhile stops it."""

    model: int
    session: int
    messages: tuple[object, ...]
    options: dict[str, object]


@dataclass(frozen=True, slots=True)
class PromptTokensRead:
    """So many tokens of the prompt are read."""

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More text, and how far the answer is (`live`), if that was told longer ago."""

    text: str
    live: object = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is over: its numbers, and who drafted what of it."""

    stats: object
    marks: tuple[object, ...]
    live: object
