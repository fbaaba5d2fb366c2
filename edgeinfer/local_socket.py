"""Where a process of edgeinfer's is reached by others of the same user: a socket's file, or a named pipe on Windows.

In: a key. Out: a listener. The file lies in a folder for this user alone, which goes with the listener, and with the
next start where the process was killed. Does not know what is said.
"""

from __future__ import annotations

import sys
import tempfile
from multiprocessing.connection import Listener
from pathlib import Path

from edgeinfer.errors import BadSetting
from edgeinfer.temporary import temporary_folder

_SHORT_FOLDER = "/tmp"
"""A path of a socket has 107 characters at most (sys/un.h; 103 on macOS); that of temporary files may be longer."""


class LocalListener(Listener):
    """Listens until it is closed; `key`: what those who connect must know. Raises BadSetting where no socket can be."""

    def __init__(self, key: bytes) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if sys.platform == "win32":
            super().__init__(authkey=key)
            return
        reasons = []
        for parent in dict.fromkeys((tempfile.gettempdir(), _SHORT_FOLDER)):
            try:
                self._folder = temporary_folder("edgeinfer", parent)
                super().__init__(str(Path(self._folder.name) / "s"), authkey=key)
            except OSError as reason:
                reasons.append(f"{parent}: {reason.strerror or reason}")
                self._remove_folder()
            else:
                return
        raise BadSetting(f"no socket can be made ({'; '.join(reasons)}); set TMPDIR to a folder such as /tmp")

    def close(self) -> None:
        """Listen no more; may be called twice."""
        super().close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
