"""The child's side of `ipc.child`: connects to the process that started this one, and ends with it.

In: standard input with an address and a key. Out: a channel to the parent. The end of standard input means that the
parent is gone or no longer needs this process, which then exits at once, even in the middle of a computation.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import Client

from edgeinfer.ipc.channel import Channel


def connect() -> Channel:
    """Connect to the parent. From now on Ctrl-C is left to the parent, which ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    address, key = (sys.stdin.buffer.readline().decode().strip() for _ in range(2))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return Channel(Client(address, authkey=bytes.fromhex(key)))


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # bypasses the lock of `sys.stdin`, which Python takes when it exits
        pass
    os._exit(0)
