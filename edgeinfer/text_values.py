"""Values as text and back: paths in files and in user input, and sizes in decimal units.

Paths: raw path bytes in files, whatever the locale, and ~ in user input; under LC_ALL=C Python holds non-ASCII names as
surrogates, which are not valid UTF-8, and under any locale a name need not be UTF-8. Sizes: 1 MB is 10^6 bytes, as
disks and downloads are labelled; all messages and commands read and write sizes through this module.
"""

from __future__ import annotations

import os
from pathlib import Path

from edgeinfer.errors import BadSetting


def path_bytes(text: str) -> bytes:
    """Encode text that contains paths for a file, using the paths' own bytes."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:  # characters that no path can have under this locale
        return text.encode("utf-8", "surrogateescape")


def path_text(content: bytes) -> str:
    """Decode what `path_bytes` wrote, with paths as this process opens them. Raises ValueError if it cannot."""
    return os.fsdecode(content)


def local_path(text: str) -> str:
    """Convert a path written as proper Unicode, such as in a configuration file, to the form this process opens."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return os.fsdecode(text.encode("utf-8", "surrogateescape"))
    return text


def proper_text(path: str) -> str:
    """A path as proper Unicode, for files that must be UTF-8. Raises ValueError if the name is not UTF-8."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8")


def user_path(text: str | Path) -> Path:
    """Expand ~ in a path typed by a user. ~name of an unknown user is treated as an ordinary name."""
    try:
        return Path(text).expanduser()
    except (RuntimeError, ValueError):  # no such user, or a zero byte
        return Path(text)


def size_text(nbytes: float) -> str:
    """Format a byte count: "450 bytes", "33.7 kB", "98.4 MB", "4.68 GB", "25.3 GB"."""
    if nbytes < 1000:
        return f"{nbytes:.0f} bytes"
    if nbytes < 999.95e3:
        return f"{nbytes / 1e3:.1f} kB"
    if nbytes < 999.95e6:
        return f"{nbytes / 1e6:.1f} MB"
    return f"{nbytes / 1e9:.2f} GB" if nbytes < 9.995e9 else f"{nbytes / 1e9:.1f} GB"


def share_text(text: str, n_bytes: int, of: str = "available memory") -> str | None:
    """Explain a relative size such as "60%": "60% of available memory = 9.85 GB". None for a size in bytes."""
    return f"{text.strip()} of {of} = {size_text(n_bytes)}" if text.strip().endswith("%") else None


def size_in_bytes(text: str, available_bytes: int) -> int:
    """Parse a size such as "6GB", "512MiB", "800000" or "60%" of the available memory. Raises BadSetting."""
    units = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
    cleaned = text.strip().lower()
    number = cleaned.rstrip("%bkmgti")
    unit = cleaned[len(number) :].removesuffix("b")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if value <= 0 or not (unit == "%" or unit in units):
        raise BadSetting(f"{text!r} is not a size; use one such as 6GB, 512MiB or 60%")
    return int(available_bytes * value / 100 if unit == "%" else value * units[unit])
