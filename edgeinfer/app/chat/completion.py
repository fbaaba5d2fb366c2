"""Completions at the cursor of the composer: files after an @, commands after a / at the beginning.

In: the text before the cursor, a folder, the commands. Out: `Completion`s, best first. Looks only at file names, and at
a bounded number of them. Knows no widgets.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.chat.attachments import GENERATED
from edgeinfer.app.plain_text import harmless
from edgeinfer.text_values import user_path

COMPLETIONS_CAP = 30
ENTRIES_CAP = 5000
DEPTH_CAP = 6

_OPEN_MENTION = re.compile(r"""(?:^|(?<=[\s(\[{<"',;]))@(?:"([^"\n]*)|([^\s"]*))$""")


@dataclass(frozen=True, slots=True)
class Completion:
    """Replacement for the fragment, its label, and whether more input can follow (a folder, an argument)."""

    insertion: str
    label: str
    help: str = ""
    goes_on: bool = False

    @property
    def is_command(self) -> bool:
        """Whether it is a complete command, with no argument to follow."""
        return self.insertion.startswith("/") and not self.goes_on


@dataclass(frozen=True, slots=True)
class PathFragment:
    """The beginning of an @path: where it starts in its line (the @), and the path so far."""

    begin: int
    path: str


def fragment_at(line: str) -> PathFragment | None:
    """The unfinished @path at the end of a line, None if there is none."""
    found = _OPEN_MENTION.search(line)
    if found is None:
        return None
    quoted, bare = found.groups()
    return PathFragment(found.start(), quoted if quoted is not None else bare)


def complete_path(path: str, base: Path) -> list[Completion]:
    """Files and folders that match a partial path.

    If the path contains a folder: that folder's entries. Otherwise everything below `base`, nearest first, up to the
    limits. Hidden entries only if the last part begins with a dot.
    """
    folder, cut, last = path.rpartition("/")
    root = base / user_path(f"{folder}/") if cut else base
    hidden = last.startswith(".")
    names = _entries(root, hidden) if cut or not last or hidden else _below(root)
    ranked = [(rank, name) for name in names if (rank := match_rank(last, name)) is not None]
    ranked.sort(key=lambda each: (each[0], len(each[1]), each[1]))
    prefix = folder + cut
    return [_path_completion(prefix + name) for _, name in ranked[:COMPLETIONS_CAP]]


def complete_command(line: str, commands: Iterable[tuple[str, str]]) -> list[Completion]:
    """Commands, given as (form, help), whose name matches a line such as "/te"; none once an argument has begun."""
    if not begins_command(line) or any(c.isspace() for c in line):
        return []
    ranked = []
    for order, (form, explanation) in enumerate(commands):
        name, _, argument = form.partition(" ")
        rank = match_rank(line[1:], name)
        if rank is not None:
            insertion = f"/{name} " if argument else f"/{name}"
            ranked.append((rank, order, Completion(insertion, f"/{form}", explanation, bool(argument))))
    return [completion for _, _, completion in sorted(ranked, key=lambda each: each[:2])]


def begins_command(text: str) -> bool:
    """Whether a text is a command rather than a message, which may begin with //."""
    return text.startswith("/") and not text.startswith("//")


def match_rank(wanted: str, name: str) -> int | None:
    """How well a name matches the input, 0 best; None unless the input's characters occur in the name in order."""
    wanted, name = wanted.casefold(), name.casefold()
    last = name.rstrip("/").rpartition("/")[2]
    if last.startswith(wanted) or name.startswith(wanted):
        return 0
    if wanted in last:
        return 1
    if wanted in name:
        return 2
    if _in_order(wanted, last):
        return 3
    return 4 if _in_order(wanted, name) else None


def _in_order(wanted: str, name: str) -> bool:
    rest = iter(name)
    return all(sign in rest for sign in wanted)


def _path_completion(name: str) -> Completion:
    goes_on = name.endswith("/")
    plain = not any(c.isspace() for c in name)
    if plain:
        return Completion(f"@{name}" if goes_on else f"@{name} ", name, goes_on=goes_on)
    return Completion(f'@"{name}' if goes_on else f'@"{name}" ', name, goes_on=goes_on)


def _below(base: Path) -> list[str]:
    """The entries below a folder, nearest first, without hidden and generated ones; folders end with a /."""
    found: list[str] = []
    folders = deque([("", 0)])
    while folders and len(found) < ENTRIES_CAP:
        prefix, depth = folders.popleft()
        for name in _entries(base / prefix, False, ENTRIES_CAP - len(found)):
            found.append(prefix + name)
            if name.endswith("/") and depth < DEPTH_CAP and name[:-1] not in GENERATED:
                folders.append((prefix + name, depth + 1))
    return found


def _entries(folder: Path, hidden: bool, cap: int = ENTRIES_CAP) -> list[str]:
    """Names in a folder, hidden ones or the others. Folders end with a /; links to folders are not followed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(_names(entries, hidden, cap))
    except (OSError, ValueError):
        return []


def _names(entries: Iterable[os.DirEntry[str]], hidden: bool, cap: int) -> Iterator[str]:
    for number, entry in enumerate(entries):
        if number >= cap:
            return
        name = entry.name
        if name.startswith(".") != hidden or '"' in name or not _printable(name):
            continue
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
        except OSError:
            continue
        yield f"{name}/" if is_folder else name


def _printable(name: str) -> bool:
    """Whether a name can be typed and displayed unchanged."""
    return harmless(name) == name and not any(c in "\n\t" or "\ud800" <= c <= "\udfff" for c in name)
