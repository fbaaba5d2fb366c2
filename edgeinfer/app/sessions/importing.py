"""A chat from a file: Markdown or JSON that was exported, or a plain list of messages as other programs write it.

In: a path, a store. Out: the number of a new chat, with all that the file has, or nothing. Trusts no file: what is not
as it should be is an error that says what, and numbers that make no sense count as unknown.
"""

from __future__ import annotations

import stat
from pathlib import Path

from edgeinfer.app.sessions.imported_json import chat_of_json
from edgeinfer.app.sessions.imported_markdown import chat_of_markdown
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.errors import SessionsFailed
from edgeinfer.path_text import user_path

MOST_BYTES = 256 << 20


def import_chat(store: SessionStore, path: Path) -> int:
    """Add the chat of a file to the store; its number. Raises SessionsFailed."""
    path = user_path(path)
    text = _read(path)
    try:
        found = chat_of_json(text) if text.lstrip()[:1] in ("{", "[") else chat_of_markdown(text)
    except ValueError as error:
        raise SessionsFailed(f"{path} cannot be imported: {error}") from None
    return store.add_chat(*found)


def _read(path: Path) -> str:
    """The text of a file, line ends as they are."""
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
