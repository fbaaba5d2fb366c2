"""Imports a chat from a file: Markdown or JSON that we exported, or a plain list of messages from another program.

In: a path, a store. Out: the number of a new chat with everything in the file, or nothing is added. Files are not
trusted: malformed content is an error that says what is wrong, and nonsensical numbers count as unknown.
"""

from __future__ import annotations

import stat
from pathlib import Path

from edgeinfer.app.sessions.imported_json import chat_of_json
from edgeinfer.app.sessions.imported_markdown import chat_of_markdown
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import SessionsFailed
from edgeinfer.text_values import user_path

MOST_BYTES = 256 << 20


def import_chat(store: SessionStore, path: Path) -> int:
    """Add the chat in a file to the store. Returns its number. Raises SessionsFailed."""
    path = user_path(path)
    text = _read(path)
    try:
        found = chat_of_json(text) if text.lstrip()[:1] in ("{", "[") else chat_of_markdown(text)
    except ValueError as error:
        raise SessionsFailed(f"{path} cannot be imported: {error}") from None
    return store.add_chat(*found)


def _read(path: Path) -> str:
    """The text of a file with its line endings unchanged."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise SessionsFailed(f"{path} is not a file; name an exported chat")
        if about.st_size > MOST_BYTES:
            raise SessionsFailed(f"{path} is larger than {MOST_BYTES >> 20} MiB; a chat is smaller")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SessionsFailed(f"{path} is not UTF-8 text (byte {error.start}); export writes .md or .json") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "impossible name"
        raise SessionsFailed(f"{path} cannot be read: {reason}") from None
