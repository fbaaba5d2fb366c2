"""Ctrl-C from the first moment of a process to its last: it ends quietly, and nothing prints a traceback.

In: nothing. Out: handlers of SIGINT for the phases of a command. While modules are imported an interrupt waits:
libraries that are interrupted there print tracebacks of their own, and turn it into other errors. Changes nothing where
interrupts are ignored, or where another program has a handler.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # what the type checker takes as true
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from types import FrameType
else:
    import _signal as signal  # the part that Python has at its start; the rest takes its time to import, as typing does

INTERRUPTED = 130
LOOK_S = 0.02
IMPORTING = "<frozen importlib"
"""How the names of files begin that stand for Python's own importing."""


def leave_quietly() -> None:
    """From now on an interrupt ends the process at once: nothing has begun yet, or everything is over."""
    _set(_leave)


def interrupt_commands() -> None:
    """From now on an interrupt is a KeyboardInterrupt, after the import that is going on, if one is."""
    if signal.getsignal(signal.SIGINT) is _leave:
        _set(_interrupt)


def interrupt_plainly() -> None:
    """From now on as Python has it by itself, which asyncio looks for before it takes interrupts over."""
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
    """Have the same signal again in a moment."""
    import threading

    timer = threading.Timer(LOOK_S, signal.raise_signal, (number,))
    timer.daemon = True
    timer.start()


def end(code: object) -> None:
    """Leave the process with an interrupt's exit code, if that is what it is.

    Python would otherwise kill itself by the signal where a KeyboardInterrupt has gone through its `exec`.
    """
    if code != INTERRUPTED:
        return
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # its reader has left, or there is none
            continue
    os._exit(INTERRUPTED)
