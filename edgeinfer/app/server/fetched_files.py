"""Files that were fetched for requests, kept for a short time: clients send a conversation's addresses with each turn.

In: addresses, and what was found there. Out: the same, within limits of time and bytes. Usable from any thread. Nothing
is kept longer than its server allows.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from edgeinfer.models.download.public import FetchedFile

KEPT_S = 600.0
"""Most seconds that a file is kept."""
KEPT_BYTES = 64 << 20
"""Most bytes of all files."""


@dataclass(slots=True)
class FetchedFiles:
    """Files by their addresses, with the time at which each is too old; the one that was used last is at the end."""

    _files: OrderedDict[str, tuple[FetchedFile, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, address: str) -> FetchedFile | None:
        """What is kept of an address."""
        with self._lock:
            self._drop()
            found = self._files.get(address)
            if found is None:
                return None
            self._files.move_to_end(address)
            return found[0]

    def keep(self, address: str, file: FetchedFile) -> None:
        """Keep a file, as long as that is allowed; files that were not used for longest make room.

        What is kept of an address becomes no younger by that.
        """
        with self._lock:
            self._drop()
            self._files.setdefault(address, (file, time.monotonic() + min(file.keep_s, KEPT_S)))
            self._drop()

    def _drop(self) -> None:
        now_s = time.monotonic()
        for address in [each for each, (_, until_s) in self._files.items() if until_s <= now_s]:
            del self._files[address]
        while sum(len(file.data) for file, _ in self._files.values()) > KEPT_BYTES:
            self._files.popitem(last=False)
