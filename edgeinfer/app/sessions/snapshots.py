"""Saved KV caches of chats, so that a long chat need not be prefilled again when it is reopened.

For models of which no prefixes are kept on disk: on devices whose passes are not batch-invariant, in other programs
and processes. In: an engine's session, the number of a chat, the fingerprint of the model. Out: files in one folder,
and notices. A snapshot only saves time: one that is damaged, of another model or of another version is deleted and
ignored, and a prompt that differs reuses the common prefix. Raises nothing: a failed write is a notice. Knows no
database and no screens.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edgeinfer.engine.prefixes.folders import is_nearly_full
from edgeinfer.errors import ContextOverflow, DoesNotFit, EdgeInferError, EngineClosed
from edgeinfer.private_files import private_folder

CAP_BYTES = 1_000_000_000
LARGEST_SHARE = 0.25
"""Largest share of the cap for one chat."""
TOKENS_MIN = 256
"""With fewer tokens than this, prefill is as quick."""
ENDING = ".chatstate"
ABANDONED_S = 3600
"""No write takes longer than this: an incomplete file that old was left by a killed process."""


class SnapshotSession(Protocol):
    """The parts of an engine session that snapshots use."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    @property
    def saved_bytes(self) -> int | None: ...

    def save(self, path: str | Path) -> None: ...

    def restore(self, path: str | Path) -> None: ...


class Snapshots:
    """The snapshots in a folder, at most `cap_bytes` in total; the least recently used are deleted first."""

    def __init__(self, folder: Path, cap_bytes: int = CAP_BYTES) -> None:
        self.folder = folder
        self.cap_bytes = cap_bytes
        self._newest: tuple[Path, tuple[int, ...]] | None = None  # last file written or read, and its tokens

    def keep(self, session: SnapshotSession, chat: int, fingerprint: str) -> str | None:
        """Save a session's KV cache, replacing the chat's earlier snapshot; returns a notice if that fails.

        Sessions that are too short or too large for the cap are silently not saved. Occupies the engine while it
        copies, so call it when nothing is being generated. A snapshot that is already on disk is not written again.
        """
        try:
            return self._keep(session, chat, fingerprint)
        except EngineClosed:
            return None
        except (EdgeInferError, OSError) as reason:
            return f"the KV cache of this chat is not saved: {reason}"

    def restore(self, session: SnapshotSession, chat: int, fingerprint: str) -> int | None:
        """Restore a session from a chat's snapshot; return how many tokens need no prefill, None without a snapshot."""
        self._forget_others(chat, fingerprint)
        path = self._path(chat, fingerprint)
        if not path.exists():
            return None
        try:
            session.restore(path)
        except (DoesNotFit, ContextOverflow, EngineClosed):
            return None  # the snapshot is valid, but not for this session
        except (EdgeInferError, OSError):
            _delete(path)
            return None
        with suppress(OSError):
            path.touch()
        self._newest = path, session.tokens
        return len(session.tokens)

    def forget(self, chat: int) -> None:
        """Delete the snapshots of a chat."""
        self._forget_others(chat, None)

    def forget_model(self, fingerprint: str) -> None:
        """Delete the snapshots of all chats with a model."""
        for path in self.folder.glob(f"*-{fingerprint[:32]}{ENDING}"):
            _delete(path)

    def clear(self) -> int:
        """Delete all snapshots; return the bytes freed."""
        freed = self.n_bytes
        for path, _, _ in self._all():
            _delete(path)
        return freed

    @property
    def n_bytes(self) -> int:
        """Total size of all snapshots."""
        return sum(nbytes for _, nbytes, _ in self._all())

    def _keep(self, session: SnapshotSession, chat: int, fingerprint: str) -> str | None:
        n_bytes, largest = session.saved_bytes or 0, int(self.cap_bytes * LARGEST_SHARE)
        path = self._path(chat, fingerprint)
        if self._newest == (path, session.tokens) and path.exists():
            return None
        if len(session.tokens) < TOKENS_MIN or n_bytes > largest:
            self.forget(chat)
            return None
        private_folder(self.folder)
        self._sweep()
        if is_nearly_full(self.folder, n_bytes):
            return "the KV cache of this chat is not saved: the disk is nearly full; opening the chat reads it again"
        session.save(path)
        self._newest = path, session.tokens
        self._forget_others(chat, fingerprint)
        if path.stat().st_size > largest:
            _delete(path)
        self._make_room(path)
        return None

    def _sweep(self) -> None:
        """Delete incomplete files left by killed processes."""
        for path in self.folder.glob(f".*{ENDING}.*"):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - ABANDONED_S:
                    path.unlink()

    def _make_room(self, newest: Path) -> None:
        """Delete the least recently used snapshots until the total is within the cap."""
        left = self.n_bytes
        for path, nbytes, _ in sorted(self._all(), key=lambda one: one[2]):
            if left > self.cap_bytes and path != newest:
                _delete(path)
                left -= nbytes

    def _forget_others(self, chat: int, fingerprint: str | None) -> None:
        """Delete a chat's snapshots of other models than this one."""
        kept = None if fingerprint is None else self._path(chat, fingerprint)
        for path in self.folder.glob(f"{chat}-*{ENDING}"):
            if path != kept:
                _delete(path)

    def _path(self, chat: int, fingerprint: str) -> Path:
        return self.folder / f"{chat}-{fingerprint[:32]}{ENDING}"

    def _all(self) -> list[tuple[Path, int, float]]:
        """All snapshots, with size and time of last use."""
        found = []
        for path in self.folder.glob(f"*{ENDING}"):
            with suppress(OSError):
                status = path.stat()
                found.append((path, status.st_size, status.st_mtime))
        return found


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
