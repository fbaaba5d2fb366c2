"""edgeinfer on another system, as far as a Linux machine can play it: run as a program, with a system and code.

`python -m tests.platforms.foreign_system win32 CODE WORD…` runs code of Python there; "linux" changes nothing.
In edgeinfer's own modules `sys.platform` and `os.name` are the other system's, and what its Python lacks is missing:
modules, functions and constants, by typeshed, the record of them that mypy brings. /proc and /sys are not there. Calls
of the system itself answer with what is recorded in `recorded_systems`. Under "win32" a file that is open, or mapped,
cannot be deleted, renamed or replaced (CreateFileW: without FILE_SHARE_DELETE, which Python does not give, both fail).
Python's own modules and other packages stay Linux's: what they do elsewhere is not tested here.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import mmap
import os
import pkgutil
import sys
import types
from collections.abc import Callable
from functools import cache
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tests.platforms.recorded_systems import SYSTEMS, Facts

ROOT = Path(__file__).parents[2]
PACKAGE = "edgeinfer"
NOT_HERE = ("/proc", "/sys")
SAME_VALUES = ("O_BINARY", "O_NOINHERIT", "O_SEQUENTIAL")
"""Flags of Windows' `open` that change nothing on Linux."""


@cache
def stub_names(module: str, platform: str) -> frozenset[str]:
    """The names that a module of the standard library has on a system, by typeshed."""
    package = importlib.util.find_spec("mypy")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "typeshed" / "stdlib"
    path = next(path for path in (folder / f"{module}.pyi", folder / module / "__init__.pyi") if path.exists())
    seen = {"sys": types.SimpleNamespace(platform=platform, version_info=sys.version_info)}
    names: set[str] = set()

    def read(statements: list[ast.stmt]) -> None:
        for statement in statements:
            match statement:
                case ast.If():
                    holds = eval(compile(ast.Expression(statement.test), path, "eval"), seen)
                    read(statement.body if holds else statement.orelse)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    names.add(statement.name)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(name)
                case ast.Assign():
                    names.update(target.id for target in statement.targets if isinstance(target, ast.Name))
                case ast.ImportFrom(names=aliases):  # `from a import b as b` gives b on, `from a import b` does not
                    names.update(alias.name for alias in aliases if alias.name in ("*", alias.asname))

    read(ast.parse(path.read_text(encoding="utf-8")).body)
    return frozenset(names)


def missing_names(module: str, platform: str) -> frozenset[str]:
    """What a module has on Linux and not on the other system."""
    return stub_names(module, "linux") - stub_names(module, platform)


def is_missing(module: str, platform: str) -> bool:
    """Whether only Linux has the module: all of `fcntl`, say, stands under `if sys.platform != "win32"` in its stub."""
    here, there = (any(name[0] != "_" for name in stub_names(module, each)) for each in ("linux", platform))
    return here and not there


class ForeignModule(types.ModuleType):
    """A module as the other system has it; what is set on it is set on the real one."""

    def __init__(self, real: types.ModuleType, missing: frozenset[str], facts: dict[str, object]) -> None:
        super().__init__(real.__name__)
        for name, value in {"_real": real, "_missing": missing, "_facts": facts}.items():
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        facts = object.__getattribute__(self, "_facts")
        if name in facts:
            return facts[name]
        if name in object.__getattribute__(self, "_missing"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on this system")
        return getattr(object.__getattribute__(self, "_real"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(object.__getattribute__(self, "_real"), name, value)

    def __dir__(self) -> list[str]:
        return dir(object.__getattribute__(self, "_real"))


class WindowsMapping(mmap.mmap):
    """`mmap.mmap` as Windows has it: no flags, no advice."""

    def __new__(
        cls, fileno: int, length: int, tagname: str | None = None, access: int = mmap.ACCESS_DEFAULT, offset: int = 0
    ) -> WindowsMapping:
        return super().__new__(cls, fileno, length, access=access, offset=offset)

    def __getattribute__(self, name: str) -> Any:
        if name == "madvise":
            raise AttributeError("'mmap.mmap' object has no attribute 'madvise'")
        return super().__getattribute__(name)


def become(platform: str) -> None:
    """From now on edgeinfer's modules, of which none may be loaded yet, see the other system."""
    assert not any(name.split(".")[0] == PACKAGE for name in sys.modules)
    facts = SYSTEMS[platform]
    foreign: dict[str, types.ModuleType] = {}
    for name in ("os", "signal", "socket", "mmap", "time", "select", "sys", "resource", "fcntl", "subprocess"):
        if not is_missing(name, platform):
            foreign[name] = ForeignModule(importlib.import_module(name), missing_names(name, platform), {})
    for name, values in own_facts(platform, facts).items():
        module = foreign.get(name) or ForeignModule(importlib.import_module(name), frozenset(), {})
        object.__getattribute__(module, "_facts").update(values)
        foreign[name] = module
    real_import = builtins.__import__

    def seen_import(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> types.ModuleType:
        if level == 0 and _is_own(globals):
            if (first := name if fromlist else name.partition(".")[0]) in foreign:
                return foreign[first]
            if name in facts.modules:
                return facts.modules[name]
            if name in sys.stdlib_module_names and has_stub(name) and is_missing(name, platform):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real_import(name, globals, locals, fromlist, level)

    builtins.__import__ = seen_import
    hide_linux()
    if platform == "win32":
        vars(connection)["PipeConnection"] = connection.Connection
        keep_open_files()


def own_facts(platform: str, facts: Facts) -> dict[str, dict[str, object]]:
    """What this program answers for the other system, by module."""
    given: dict[str, dict[str, object]] = {name: dict(values) for name, values in facts.values.items()}
    given.setdefault("sys", {})["platform"] = platform
    if platform == "win32":
        given.setdefault("os", {}).update({"name": "nt", **dict.fromkeys(SAME_VALUES, 0)})
        given.setdefault("mmap", {})["mmap"] = WindowsMapping
    return given


def _is_own(globals: dict[str, Any] | None) -> bool:
    return bool(globals) and str((globals or {}).get("__name__", "")).split(".")[0] == PACKAGE


@cache
def has_stub(name: str) -> bool:
    """Whether typeshed knows a module of that name."""
    try:
        stub_names(name, "linux")
    except (StopIteration, RuntimeError):
        return False
    return True


def hide_linux() -> None:
    """edgeinfer's own modules find no /proc and no /sys; psutil, which reads them here, does."""

    def refuse(path: object) -> None:
        if isinstance(path, (str, Path)) and str(path).startswith(NOT_HERE) and _asked_by_own():
            raise FileNotFoundError(2, "No such file or directory", str(path))

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir"):
            refuse(arguments[0])

    real = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:  # what Path.exists asks; it raises no audit event
        refuse(path)
        return real(path, **options)

    sys.addaudithook(look)
    vars(os)["stat"] = stat


def _asked_by_own() -> bool:
    """Whether a module of edgeinfer asks, be it by way of Python's own."""
    frame = sys._getframe(2)
    while frame is not None:
        root = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if root == PACKAGE or frame.f_code is open_files.__code__:
            return root == PACKAGE
        if root not in ("pathlib", "io", "os", "glob", "tests", "genericpath", "posixpath"):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def keep_open_files() -> None:
    """Files that this process has open or mapped cannot be deleted, renamed or replaced, whoever asks."""

    def guarded(real: Callable[..., Any], n_paths: int) -> Callable[..., Any]:
        def call(*paths: Any, **options: Any) -> Any:
            if not any(options.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
                for path in paths[:n_paths]:
                    if (name := os.path.realpath(os.fsdecode(path))) in open_files():
                        raise PermissionError(13, "it is being used by another process", name)
            return real(*paths, **options)

        return call

    for name, n_paths in (("unlink", 1), ("remove", 1), ("replace", 2), ("rename", 2)):
        setattr(os, name, guarded(getattr(os, name), n_paths))


def open_files() -> set[str]:
    """The paths of what this process has open or mapped."""
    numbers, found = os.listdir("/proc/self/fd"), set[str]()
    for number in numbers:
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # closed meanwhile
            continue
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
        found.update(line.split(maxsplit=5)[5].rstrip("\n") for line in lines if len(line.split(maxsplit=5)) == 6)
    return found


def import_all() -> int:
    """Import every module of edgeinfer whose packages are installed; returns how many there are."""
    package, count = importlib.import_module(PACKAGE), 0
    for module in pkgutil.walk_packages(package.__path__, f"{PACKAGE}."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.split(".")[0] in (PACKAGE, *sys.stdlib_module_names):
                raise
        count += 1
    return count


def main(platform: str, code: str) -> None:
    """Become the system, then run the code; further words are in `sys.argv`."""
    if platform != "linux":
        become(platform)
    exec(compile(code, "code", "exec"), {"__name__": "code"})


if __name__ == "__main__":
    sys.argv = ["code", *sys.argv[1:]]
    from tests.platforms import foreign_system  # not as __main__: what the code imports is the same module

    foreign_system.main(sys.argv[1], sys.argv[2])
