"""The llama.cpp library: imported once, its messages kept off the terminal, its failures turned into messages.

In: nothing. Out: the module of its functions, and the last errors it reported. Independent of models.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections import deque
from functools import cache
from typing import Any

from edgeinfer.errors import DeviceUnavailable

KEY = "llamacpp"
INSTALL = "pip install 'edgeinfer[llamacpp]'"
ERROR, CONTINUED = 4, 5
"""Log levels: error, and continuation of the previous message."""
MOST_LINES = 6
NEEDED = ("llama_memory_seq_cp", "llama_state_seq_set_data", "llama_init_from_model", "llama_set_abort_callback")


class Library:
    """llama.cpp's functions as `api`, and its messages. One per process, since its message callback is process-wide."""

    def __init__(self, install: str) -> None:
        """Raises DeviceUnavailable if the package is missing, broken or too old."""
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # otherwise it first runs a debugger on itself, which may hang
        try:
            import llama_cpp
        except ImportError as reason:
            missing = reason.name == "llama_cpp"
            what = "llama-cpp-python is not installed" if missing else f"llama-cpp-python cannot be used: {reason}"
            raise DeviceUnavailable(f"{what}: {install}") from None
        except (OSError, RuntimeError) as reason:  # its shared library is missing, or was built for another CPU
            raise DeviceUnavailable(f"llama-cpp-python cannot be used: {reason}; {install}") from None
        self.api: Any = llama_cpp
        self.version = importlib.metadata.version("llama_cpp_python")
        if lacking := [name for name in NEEDED if name not in dir(llama_cpp)]:
            raise DeviceUnavailable(
                f"llama-cpp-python {self.version} is too old: it has no {lacking[0]}; {install} --upgrade"
            )
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._sizes: list[str] = []
        self._level = 0
        self._callback = llama_cpp.llama_log_callback(self._listen)
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()

    def forget(self) -> None:
        """Forget earlier messages."""
        self._lines.clear()
        self._sizes.clear()

    @property
    def errors(self) -> str:
        """The last errors in one line; "" if there were none."""
        return "; ".join(dict.fromkeys(line for line in self._lines if line))

    @property
    def sizes(self) -> tuple[str, ...]:
        """Messages that report the size of a buffer."""
        return tuple(self._sizes)

    def _listen(self, level: int, text: bytes, _: object) -> None:
        line = text.decode(errors="replace").strip()
        if level != CONTINUED:
            self._level = level
        if self._level == ERROR:
            self._lines.append(line)
        elif "buffer size" in line:
            self._sizes.append(line)


@cache
def library(install: str) -> Library:
    """The library. Raises DeviceUnavailable."""
    return Library(install)
