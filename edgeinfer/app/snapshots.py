"""What kept chats had read, on disk: a long chat that is opened again need not be read again.

In: an engine's session, the number of a chat, the fingerprint of the model. Out: files in one folder, and notices. A
snapshot only saves time: one that is damaged, of another model or of another version is deleted and counts as none, and
a prompt that differs reuses the part that agrees. Nothing is raised: what cannot be written is a notice. Knows no
database and no screens.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edgeinfer.errors import ContextOverflow, DoesNotFit, EdgeInferError, EngineClosed

CAP_BYTES = 1_000_000_000
LARGEST_SHARE = 0.25
"""Of the cap, for one chat."""
TOKENS_MIN = 256
"""Of fewer than these, reading again is as quick."""
FREE_SHARE_MIN = 0.05
"""Of the disk, which is left free."""
ENDING = ".chatstate"
ABANDONED_S = 3600
"""Nobody writes a file for longer: a half-written one that old was left by a program that was killed."""


class SnapshotSession(Protocol):
    """A session of the engine, as far as it is kept."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    @property
    def saved_bytes(self) -> int | None: ...

    def save(self, path: str | Path) -> None: ...

    def restore(self, path: str | Path) -> None: ...


class Snapshots:
    """The snapshots in a folder, `cap_bytes` at most: the ones used longest ago go first."""

    def __init__(self, folder: Path, cap_bytes: int = CAP_BYTES) -> None:
        self.folder = folder
        self.cap_bytes = cap_bytes
        self._newest: tuple[Path, tuple[int, ...]] | None = None  # written or read last, and the tokens in it

    def keep(self, session: SnapshotSession, chat: int, fingerprint: str) -> str | None:
        """Write what a session has read, in place of what was kept of the chat; a notice where that cannot be.

        Short sessions and ones too large for the cap are not kept, which needs no notice. Takes the engine while it
        copies: call it when nothing is generated. What is on disk already is not written again.
        """
        try:
            return self._keep(session, chat, fingerprint)
        except EngineClosed:
            return None
        except (EdgeInferError, OSError) as reason:
            return f"the KV cache of this chat is not saved: {reason}"

    def restore(self, session: SnapshotSession, chat: int, fingerprint: str) -> int | None:
        """Let a session go on from what was kept of a chat: how many tokens it need not read; None without any."""
        self._forget_others(chat, fingerprint)
        path = self._path(chat, fingerprint)
        if not path.exists():
            return None
        try:
            session.restore(path)
        except (DoesNotFit, ContextOverflow, EngineClosed):
            return None  # the snapshot is sound, only not for this session
        except (EdgeInferError, OSError):
            _delete(path)
            return None
        with suppress(OSError):
            path.touch()
        self._newest = path, session.tokens
        return len(session.tokens)

    def forget(self, chat: int) -> None:
        """Delete what was kept of a chat."""
        self._forget_others(chat, None)

    def clear(self) -> int:
        """Delete everything; how many bytes that frees."""
        freed = self.n_bytes
        for path, _, _ in self._all():
            _delete(path)
        return freed

    @property
    def n_bytes(self) -> int:
        """Bytes of all snapshots."""
        return sum(nbytes for _, nbytes, _ in self._all())

    def _keep(self, session: SnapshotSession, chat: int, fingerprint: str) -> str | None:
        n_bytes, largest = session.saved_bytes or 0, int(self.cap_bytes * LARGEST_SHARE)
        path = self._path(chat, fingerprint)
        if self._newest == (path, session.tokens) and path.exists():
            return None
        if len(session.tokens) < TOKENS_MIN or n_bytes > largest:
            self.forget(chat)
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        disk = shutil.disk_usage(self.folder)
        if disk.free - n_bytes < disk.total * FREE_SHARE_MIN:
            return "the KV cache of this chat is not saved: the disk is nearly full; opening the chat reads it again"
        session.save(path)
        self._newest = path, session.tokens
        self._forget_others(chat, fingerprint)
        if path.stat().st_size > largest:
            _delete(path)
        self._make_room(path)
        return None

    def _sweep(self) -> None:
        """Delete what a killed program left half-written."""
        for path in self.folder.glob(f".*{ENDING}.*"):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - ABANDONED_S:
                    path.unlink()

    def _make_room(self, newest: Path) -> None:
        """Delete the ones used longest ago until all are within the cap."""
        left = self.n_bytes
        for path, nbytes, _ in sorted(self._all(), key=lambda one: one[2]):
            if left > self.cap_bytes and path != newest:
                _delete(path)
                left -= nbytes

    def _forget_others(self, chat: int, fingerprint: str | None) -> None:
        """Delete what was kept of a chat with other models than this one."""
        kept = None if fingerprint is None else self._path(chat, fingerprint)
        for path in self.folder.glob(f"{chat}-*{ENDING}"):
            if path != kept:
                _delete(path)

    def _path(self, chat: int, fingerprint: str) -> Path:
        return self.folder / f"{chat}-{fingerprint[:32]}{ENDING}"

    def _all(self) -> list[tuple[Path, int, float]]:
        """Every snapshot, its bytes and when it was used last."""
        found = []
        for path in self.folder.glob(f"*{ENDING}"):
            with suppress(OSError):
                status = path.stat()
                found.append((path, status.st_size, status.st_mtime))
        return found


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
