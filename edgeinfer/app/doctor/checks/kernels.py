"""Where compiled kernels come from: the package of prebuilt ones, or the folder of those compiled here.

Says whether each is usable, why the package is not used, and what other versions left in the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgeinfer import __version__
from edgeinfer.app.doctor import Check, Finding
from edgeinfer.app.doctor.machine import ExaminedMachine, nearest_existing
from edgeinfer.app.plain_text import counted
from edgeinfer.jit.prebuilt import NO_PREBUILT, PrebuiltCode, State, prebuilt_code
from edgeinfer.text_values import size_text

LEFT_BYTES = 50e6
"""Less than this is not worth deleting."""
CODE = ".o"
WHEEL = "edgeinfer-kernels"
COMPILED_INSTEAD = "kernels are compiled instead"
STATES: tuple[State, ...] = ("damaged", "other system", "other sources", "overridden", "other cpu", "absent", "used")
"""What holds for the package as a whole if it differs by kind of code: the first of these."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of compiled code and its contents."""

    name: str
    n_compiled: int = 0
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KernelFolders:
    """Folders below `root`: `current` ones of exactly this version (kernels, drafting loops), and `others`.

    `prebuilt`: what the package has for this version and CPU, `damaged` if a file of it cannot be read.
    """

    root: Path | None = None
    is_writable: bool = True
    current: tuple[Folder, ...] = ()
    others: tuple[Folder, ...] = ()
    prebuilt: PrebuiltCode = NO_PREBUILT


def read(machine: ExaminedMachine) -> KernelFolders:
    """Read the folders on disk and the package. Loads LLVM, as the CPU is part of folders' names, but no compiler."""
    from edgeinfer.backends.base import device_kinds
    from edgeinfer.engine.speculation.drafts import loop_sources
    from edgeinfer.jit.cpu import cpu_features
    from edgeinfer.jit.library import cache_folder, sources_hash

    kinds = device_kinds().values()
    sources = [*(kind.code_sources() for kind in kinds if kind.code_sources is not None), loop_sources()]
    prebuilt = [prebuilt_code(sources_hash(*each), cpu_features) for each in sources]
    return replace(read_folders([cache_folder(*each) for each in sources]), prebuilt=worst(prebuilt))


def worst(prebuilt: Sequence[PrebuiltCode]) -> PrebuiltCode:
    """What holds for the package as a whole; its files are read to the end."""
    whole = [replace(each, state="damaged") if each.damaged_archives() else each for each in prebuilt]
    return min(whole, key=lambda each: STATES.index(each.state))


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
    found = [] if facts.root is None else [*_current(facts, facts.root), *_left(facts, facts.root)]
    return [*found, *_package(facts.prebuilt)]


def _current(facts: KernelFolders, root: Path) -> Iterator[Finding]:
    n_compiled = sum(folder.n_compiled for folder in facts.current)
    n_bytes = sum(folder.n_bytes for folder in facts.current)
    kept = f"{n_compiled} kernels and loops are compiled ({size_text(n_bytes)})"
    if not facts.is_writable:
        message = f"{root} cannot be written: {kept}, what is missing is compiled at every start"
        fix = "make it yours (sudo chown -R $USER), or set XDG_CACHE_HOME to a folder that is"
        yield Finding("kernels", "wrong", message, fix, n_compiled, "kernels")
    elif not n_compiled and facts.prebuilt.state == "used":
        yield Finding("kernels", "ok", f"{root} is empty: {WHEEL} has what models need", None, 0, "kernels")
    elif not n_compiled:
        message = "nothing is compiled yet for this version and CPU: the first answer waits for it"
        yield Finding("kernels", "note", message, "edgeinfer run, once, compiles what your model needs", 0, "kernels")
    else:
        yield Finding(
            "kernels", "ok", f"{kept}, a start compiles nothing it has used before", None, n_compiled, "kernels"
        )


def _package(prebuilt: PrebuiltCode) -> Iterator[Finding]:
    """Whether kernels come from the package, and why not; nothing if it is not installed."""
    name = f"{WHEEL} {prebuilt.version}" if prebuilt.version else WHEEL
    matching = f"pip install --force-reinstall {WHEEL}=={__version__}"
    match prebuilt.state:
        case "used":
            fastest = next(iter(prebuilt.archives))
            yield Finding("kernels-package", "ok", f"{name} has compiled kernels for this CPU ({fastest})")
        case "damaged":
            yield Finding("kernels-package", "wrong", f"{name} is damaged: {COMPILED_INSTEAD}", matching)
        case "other system":
            yield Finding("kernels-package", "wrong", f"{name} is for another system: {COMPILED_INSTEAD}", matching)
        case "other sources" if prebuilt.version != __version__:
            message = f"{name} is for another version than edgeinfer {__version__}: {COMPILED_INSTEAD}"
            yield Finding("kernels-package", "note", message, matching)
        case "other sources":
            message = f"{name} was made from other sources than this edgeinfer's: {COMPILED_INSTEAD}"
            fix = "make kernels-wheel, in the folder of these sources, makes one that fits"
            yield Finding("kernels-package", "note", message, fix)
        case "other cpu":
            yield Finding("kernels-package", "ok", f"{name} has no kernels for this CPU: {COMPILED_INSTEAD}")
        case "overridden":
            message = f"NUMBA_CPU_NAME or NUMBA_CPU_FEATURES is set: {WHEEL} is not used, {COMPILED_INSTEAD}"
            yield Finding("kernels-package", "ok", message)


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
