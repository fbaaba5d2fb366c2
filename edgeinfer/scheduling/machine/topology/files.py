"""The small text files of sysfs and procfs: numbers, lists of CPUs, sizes; what a process may use.

In: paths or texts. Out: values; missing, unreadable or malformed ones are "", None or ().
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MOST_DIGITS = 4
"""Bound on the number of a CPU or node: kernels are built for 8192 at most."""
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_SIZE = re.compile(r"(\d{1,12})([KMG]?)")
_NUMBER = re.compile(r"-?\d{1,20}")


def text_of(path: Path) -> str:
    """The file's text without surrounding space; "" if it cannot be read: masked, taken offline meanwhile, absent."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except (OSError, ValueError):
        return ""


def parse_number(text: str) -> int | None:
    """A decimal integer; None if the text is anything else."""
    return int(text) if _NUMBER.fullmatch(text) else None


def number_of(path: Path) -> int | None:
    """The integer in a file."""
    return parse_number(text_of(path))


def parse_list(text: str) -> tuple[int, ...]:
    """The kernel's lists of CPUs and nodes: "0-3,8" is (0, 1, 2, 3, 8). Malformed parts are left out."""
    numbers: set[int] = set()
    for part in text.split(","):
        if match := _RANGE.fullmatch(part.strip()):
            first, last = match.groups()
            numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def list_of(path: Path) -> tuple[int, ...]:
    """The list of CPUs or nodes in a file."""
    return parse_list(text_of(path))


def size_of(path: Path) -> int:
    """Bytes of a cache's size as its file states it, "32768K"; 0 if it does not."""
    match = _SIZE.fullmatch(text_of(path))
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


def numbered(folder: Path, name: str) -> tuple[int, ...]:
    """The numbers n of the entries NAMEn of a folder, increasing."""
    try:
        ends = [entry.name.removeprefix(name) for entry in folder.iterdir() if entry.name.startswith(name)]
    except OSError:
        return ()
    return tuple(sorted(int(end) for end in ends if end.isdecimal() and len(end) <= MOST_DIGITS))


def allowed_cpus(root: Path) -> tuple[int, ...]:
    """The CPUs the process may run on."""
    return parse_list(_fields(text_of(root / "proc/self/status")).get("Cpus_allowed_list", ""))


def allowed_nodes(root: Path) -> tuple[int, ...]:
    """The NUMA nodes the process may take memory from."""
    return parse_list(_fields(text_of(root / "proc/self/status")).get("Mems_allowed_list", ""))


def listed_cores(root: Path) -> dict[int, tuple[str, str] | None]:
    """The online CPUs of `/proc/cpuinfo`, each with its package and core if they are listed, as on x86."""
    cores: dict[int, tuple[str, str] | None] = {}
    for fields in _paragraphs(root):
        if (cpu := parse_number(fields.get("processor", ""))) is not None and cpu >= 0:
            package, core = fields.get("physical id"), fields.get("core id")
            cores[cpu] = None if package is None or core is None else (package, core)
    return cores


def _paragraphs(root: Path) -> Iterator[dict[str, str]]:
    for paragraph in text_of(root / "proc/cpuinfo").split("\n\n"):
        yield _fields(paragraph)


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}
