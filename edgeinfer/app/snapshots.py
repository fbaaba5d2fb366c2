"""What models have read of kept chats, on disk: a long chat that is opened again goes on at once.

In: an engine's session, the number of a chat, the fingerprint of a model. Out: a file a chat, or what it holds back in the
session. A snapshot is nothing but time saved: whatever is wrong with one, it is deleted and the text is read again. Its
tokens are compared with the prompt's before any of it is used, as those of every session are.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edgeinfer.errors import EdgeInferError

LEAST_TOKENS = 128
"""Fewer are read again in no time."""
CAP_BYTES = 1_000_000_000
LARGEST_SHARE = 0.5
SPARE_SHARE = 0.05
"""Of the disk, which stays free."""


class Savable(Protocol):
    """A session of the engine."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    def save(self, path: str | Path) -> None: ...

    def restore(self, path: str | Path) -> None: ...


class Snapshots:
    """A folder of snapshots, of `cap_bytes` at most in all; 0 keeps none."""

    def __init__(self, folder: Path, cap_bytes: int = CAP_BYTES) -> None:
        self._folder = folder
        self._cap_bytes = cap_bytes

    def keep(self, session: Savable, chat: int, fingerprint: str) -> str | None:
        """Keep what a session has read of a chat; what to tell about it where it cannot be kept, None for nothing."""
        if len(session.tokens) < LEAST_TOKENS or not self._cap_bytes:
            return None
        path = self._path(chat, fingerprint)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._make_room(0)
            disk = shutil.disk_usage(self._folder)
            if disk.free < SPARE_SHARE * disk.total:
                return "what was read of this chat is not kept: the disk is nearly full"
            session.save(path)
            if path.stat().st_size > LARGEST_SHARE * self._cap_bytes:
                path.unlink()
                return None
            path.chmod(0o600)
            self._make_room(0)
        except (EdgeInferError, OSError) as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return f"what was read of this chat is not kept: {error}"
        return None

    def restore(self, session: Savable, chat: int, fingerprint: str) -> int | None:
        """Bring back what was read of a chat; how many tokens, None where there is nothing of use."""
        path = self._path(chat, fingerprint)
        if not path.is_file():
            return None
        try:
            session.restore(path)
            os.utime(path)
        except (EdgeInferError, OSError):
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        return len(session.tokens)

    def forget(self, chat: int) -> None:
        """Delete what is kept of a chat, by any model."""
        for path in self._folder.glob(f"{chat}-*.kv"):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _path(self, chat: int, fingerprint: str) -> Path:
        name = "".join(c for c in fingerprint if c.isalnum())[:32]
        return self._folder / f"{chat}-{name}.kv"

    def _make_room(self, n_bytes: int) -> None:
        """Delete the snapshots used longest ago, until the others fit."""
        found = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self._folder.glob("*.kv"))
        total = n_bytes + sum(size for _, size, _ in found)
        for _, size, path in found:
            if total <= self._cap_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
