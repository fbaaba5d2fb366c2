"""Ctrl-C handling over the whole life of a process: it ends quietly, without a traceback.

In: nothing. Out: SIGINT handlers for the phases of a command. An interrupt during an import is delayed until the import
is done, because libraries interrupted there print their own tracebacks and raise other errors. Changes nothing where
interrupts are ignored or another program has installed a handler.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # type checkers treat this as true
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from types import FrameType
else:
    import _signal as signal  # loaded at Python's startup; signal itself, like typing, is slow to import

INTERRUPTED = 130
LOOK_S = 0.02
IMPORTING = "<frozen importlib"
"""Prefix of the file names of Python's import machinery in stack frames."""


def leave_quietly() -> None:
    """From now on an interrupt ends the process at once. For use before any work begins and after all is done."""
    _set(_leave)


def interrupt_commands() -> None:
    """From now on an interrupt raises KeyboardInterrupt, after the import in progress, if any."""
    if signal.getsignal(signal.SIGINT) is _leave:
        _set(_interrupt)


def interrupt_plainly() -> None:
    """From now on use Python's default handler, which asyncio checks for before it installs its own."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        _set(signal.default_int_handler)


def _set(handler: Callable[[int, FrameType | None], object]) -> None:
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _leave, _interrupt):
        signal.signal(signal.SIGINT, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _is_importing(frame):
        _come_again(number)
    else:
        raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTING):
            return True
        frame = frame.f_back
    return False


def _come_again(number: int) -> None:
    """Raise the same signal again shortly."""
    import threading

    timer = threading.Timer(LOOK_S, signal.raise_signal, (number,))
    timer.daemon = True
    timer.start()


def end(code: object) -> None:
    """Exit the process if `code` is that of an interrupt.

    Otherwise Python would kill itself by the signal once a KeyboardInterrupt has passed through its `exec`.
    """
    if code != INTERRUPTED:
        return
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # the reader has gone, or there is no such stream
            continue
    os._exit(INTERRUPTED)
