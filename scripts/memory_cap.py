"""A memory limit that the kernel enforces: a child process's own control group, version 1 or 2.

In: bytes. Out: a prefix for command lines, and the group's peak use. Needs permission to create control groups.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

ROOT = Path("/sys/fs/cgroup")


class MemoryCap:
    """A control group with a memory limit that includes file pages; without swap, if that can be set.

    Raises OSError if no group can be created.
    """

    def __init__(self, n_bytes: int) -> None:
        is_v1 = (ROOT / "memory").is_dir()
        parent = ROOT / "memory" if is_v1 else ROOT
        self.folder = parent / f"edgeinfer-{os.getpid()}-{n_bytes}"
        self._limit, self._peak = (
            ("memory.limit_in_bytes", "memory.max_usage_in_bytes") if is_v1 else ("memory.max", "memory.peak")
        )
        self.folder.mkdir()
        try:
            (self.folder / self._limit).write_text(str(n_bytes))
            for name in ("memory.swap.max", "memory.swappiness"):
                if (self.folder / name).exists():
                    (self.folder / name).write_text("0")
        except OSError:
            self.folder.rmdir()
            raise

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command that runs `arguments` in the group."""
        return ["sh", "-c", f'echo $$ > "{self.folder}/cgroup.procs" && exec "$@"', "sh", *arguments]

    @property
    def peak_bytes(self) -> int:
        """The most that the group held, file pages included."""
        return int((self.folder / self._peak).read_text())

    def __enter__(self) -> MemoryCap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.folder.rmdir()
