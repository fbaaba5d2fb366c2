"""The folder of compiled kernels: whether it is usable, what it contains, and what other versions left there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine, nearest_existing
from edgeinfer.app.plain_text import counted
from edgeinfer.text_values import size_text

LEFT_BYTES = 50e6
"""Less than this is not worth deleting."""
CODE = ".o"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of compiled code and its contents."""

    name: str
    n_compiled: int = 0
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KernelFolders:
    """Folders below `root`: `current` ones of exactly this version (kernels, drafting loops), and `others`."""

    root: Path | None = None
    is_writable: bool = True
    current: tuple[Folder, ...] = ()
    others: tuple[Folder, ...] = ()


def read(machine: ExaminedMachine) -> KernelFolders:
    """Read the folders on disk. Loads LLVM, since the CPU is part of their names, but no compiler."""
    from edgeinfer.backends.base import device_kinds
    from edgeinfer.engine.speculation.drafts import loops_folder

    folders = [kind.code_folder() for kind in device_kinds().values() if kind.code_folder is not None]
    return read_folders([*folders, loops_folder()])


def read_folders(current: Sequence[Path]) -> KernelFolders:
    """Read the contents of this version's folders, and of the folders beside them."""
    root, names = current[0].parent, {folder.name for folder in current}
    try:
        others = [entry for entry in sorted(root.iterdir()) if entry.is_dir() and entry.name not in names]
    except OSError:
        others = []
    return KernelFolders(
        root=root,
        is_writable=all(os.access(nearest_existing(folder), os.W_OK) for folder in current),
        current=tuple(map(_contents, current)),
        others=tuple(map(_contents, others)),
    )


def _contents(folder: Path) -> Folder:
    n_compiled = n_bytes = 0
    try:
        for entry in os.scandir(folder):
            if entry.is_file(follow_symlinks=False):
                n_compiled += entry.name.endswith(CODE)
                n_bytes += entry.stat(follow_symlinks=False).st_size
    except OSError:
        pass
    return Folder(folder.name, n_compiled, n_bytes)


def judge(facts: KernelFolders) -> Sequence[Finding]:
    """Whether a start compiles nothing, and what can be deleted."""
    return [] if facts.root is None else [*_current(facts, facts.root), *_left(facts, facts.root)]


def _current(facts: KernelFolders, root: Path) -> Iterator[Finding]:
    n_compiled = sum(folder.n_compiled for folder in facts.current)
    n_bytes = sum(folder.n_bytes for folder in facts.current)
    kept = f"{n_compiled} kernels and loops are compiled ({size_text(n_bytes)})"
    if not facts.is_writable:
        message = f"{root} cannot be written: {kept}, what is missing is compiled at every start"
        fix = "make it yours (sudo chown -R $USER), or set XDG_CACHE_HOME to a folder that is"
        yield Finding("kernels", "wrong", message, fix, n_compiled, "kernels")
    elif not n_compiled:
        message = "nothing is compiled yet for this version and CPU: the first answer waits for it"
        yield Finding("kernels", "note", message, "edgeinfer run, once, compiles what your model needs", 0, "kernels")
    else:
        yield Finding(
            "kernels", "ok", f"{kept}, a start compiles nothing it has used before", None, n_compiled, "kernels"
        )


def _left(facts: KernelFolders, root: Path) -> Iterator[Finding]:
    n_bytes = sum(folder.n_bytes for folder in facts.others)
    if not facts.others:
        return
    message = f"other versions left {size_text(n_bytes)} of kernels in {counted(len(facts.others), 'folder')}"
    megabytes = round(n_bytes / 1e6, 1)
    if n_bytes >= LEFT_BYTES:
        keep = " and ".join(folder.name for folder in facts.current)
        fix = f"delete all of {root} but {keep}, unless another installation still uses them"
        yield Finding("kernels-left", "note", message, fix, megabytes, "MB")
    else:
        yield Finding("kernels-left", "ok", message, value=megabytes, unit="MB")


CHECK = Check(order=80, summary="compiled kernels", read=read, judge=judge, unknown=KernelFolders())
