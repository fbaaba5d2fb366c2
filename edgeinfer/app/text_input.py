"""Reads a command's standard input, byte for byte.

In: an argument that may be missing. Out: text. Line ends are preserved. Does not know what the text is for.
"""

from __future__ import annotations

import sys

from edgeinfer.errors import EdgeInferError


def argument_or_stdin(argument: str | None) -> str:
    """The argument if given, else all of standard input as UTF-8. Raises EdgeInferError if it is not UTF-8."""
    if argument is not None:
        return argument
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EdgeInferError(f"standard input is not UTF-8 at byte {error.start}; convert it to UTF-8 first") from None
