"""Records over a connection between two processes.

In: frozen dataclasses. Out: the same on the other side. One message holds the class name and the fields as JSON, then
the bytes of the field `body`, if the record has one. Received data is never unpickled. Closing a channel ends it for
both sides.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from typing import Any, Self, TypeVar

from edgeinfer import errors
from edgeinfer.errors import EdgeInferError
from edgeinfer.ipc.records import read_as, to_json

if sys.platform == "win32":
    from multiprocessing.connection import PipeConnection as Connection
else:
    from multiprocessing.connection import Connection

T = TypeVar("T")
BODY = "body"


class Channel:
    """One end of a connection. Several threads may send while one receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self._connection.close()

    def fileno(self) -> int:
        """The file descriptor of the connection."""
        return self._connection.fileno()

    def poll(self, seconds: float) -> bool:
        """Wait for a message; True if there is one, or the end of the connection. Raises OSError if closed."""
        return self._connection.poll(seconds)

    def send(self, record: Any) -> None:
        """Send a record. Raises OSError if the other side has closed."""
        head = {field.name: getattr(record, field.name) for field in fields(record) if field.name != BODY}
        message = to_json([type(record).__name__, head]).encode()
        self._connection.send_bytes(message + b"\n" + getattr(record, BODY, b""))

    def receive(self, *kinds: type[T]) -> T:
        """Receive the next record. Raises EOFError or OSError at the end, ValueError for other classes than these."""
        head, _, body = self._connection.recv_bytes().partition(b"\n")
        message = json.loads(head)
        if not isinstance(message, list) or len(message) != 2 or not isinstance(message[1], dict):
            raise ValueError(f"not a message: {head[:80]!r}")
        name, values = message
        kind = next((kind for kind in kinds if kind.__name__ == name), None)
        if kind is None:
            raise ValueError(f"{name!r:.80} where {' or '.join(kind.__name__ for kind in kinds)} was expected")
        if any(field.name == BODY for field in fields(kind)):  # type: ignore[arg-type]
            values[BODY] = body
        record: T = read_as(kind, values)
        return record


def error_of(name: str, message: str) -> EdgeInferError | None:
    """Rebuild an error of `edgeinfer.errors` raised in another process, by its class name; None for other classes."""
    kind = vars(errors).get(name)
    return kind(message) if isinstance(kind, type) and issubclass(kind, EdgeInferError) else None
