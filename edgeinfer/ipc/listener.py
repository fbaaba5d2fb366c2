"""A local listener for processes of the same user: a Unix socket, or a named pipe on Windows.

In: a key. Out: a listener. The socket is in a folder that only this user can enter. The folder is removed with the
listener, or at the next start if the process was killed. Knows no messages.
"""

from __future__ import annotations

import sys
import tempfile
from multiprocessing.connection import Listener
from pathlib import Path

from edgeinfer.errors import BadSetting
from edgeinfer.temporary import temporary_folder

_SHORT_FOLDER = "/tmp"
"""Socket paths have at most 107 characters (sys/un.h; 103 on macOS); a path in the temporary folder may exceed that."""


class LocalListener(Listener):
    """Listen until closed. `key`: required of clients. Raises BadSetting if no socket can be created."""

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
        """Stop listening; may be called twice."""
        super().close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
