"""An end in order where SIGTERM asks for one, as `kill`, systemd and container engines send it.

In: a block of work in the main thread. Out: the block is left as by an exception. By the signal alone the process would
be gone before models, tools and notes are closed; uvicorn too sends itself the signal again when it has shut down.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(SystemExit):
    """SIGTERM was received. asyncio lets only this kind and KeyboardInterrupt through at once."""


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """Leave the block when SIGTERM is received; the program goes on behind it.

    Changes nothing in other threads, and where another program has a handler.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _unwind)
    try:
        yield
    except Terminated:
        return
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _unwind(number: int, frame: FrameType | None) -> None:
    raise Terminated(0)
