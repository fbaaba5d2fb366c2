"""Machines as their systems show them: sysfs and procfs written down as text, laid out below a folder.

In: names of files in `trees`, later ones over earlier ones. Out: the folder, a root that `read_topology` reads. A line
is "path: content"; lines of one path follow each other in its file. In a path, {0-1;2} stands for every CPU of both
lists, and $group in the content for the list that holds it.
"""

from __future__ import annotations

import re
from pathlib import Path

from edgeinfer.scheduling.machine.topology.linux_files import parse_list

TREES = Path(__file__).parent / "trees"
BRACES = re.compile(r"\{([^}]*)\}")


def lay_out(root: Path, *names: str) -> Path:
    """Write the files of the named trees below `root`."""
    for name in names:
        write_files(root, files_of((TREES / f"{name}.txt").read_text(encoding="ascii")))
    return root


def write_files(root: Path, files: dict[str, str]) -> Path:
    """Write texts by path below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def files_of(text: str) -> dict[str, str]:
    """The files that a tree's lines describe, each line of theirs ended."""
    files: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        path, _, content = line.partition(":")
        for name, group in expanded(path):
            files[name] = files.get(name, "") + content.removeprefix(" ").replace("$group", group) + "\n"
    return files


def expanded(path: str) -> list[tuple[str, str]]:
    """The paths that one with braces stands for, each with the list of CPUs it came from."""
    braces = BRACES.search(path)
    if braces is None:
        return [(path, "")]
    return [(path.replace(braces[0], str(cpu)), group) for group in braces[1].split(";") for cpu in parse_list(group)]
