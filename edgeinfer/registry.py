"""Folders as registries: the file name is the key, and one exported constant is the entry.

In: a package (``edgeinfer.models.quants``) and the constant its modules export (``FORMAT``). Out: keys and entries,
imported one at a time and only on request. Packages outside edgeinfer add entries through an entry point group of the
same name as the package. Does not know what an entry is.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from edgeinfer.errors import UnknownKey

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """The modules of `package`, each exporting `constant`, by module name.

    `noun` names an entry in messages ("quant format"). Modules named in `skip` are not entries.
    """

    def __init__(self, package: str, constant: str, noun: str, skip: tuple[str, ...] = ()) -> None:
        self._package = package
        self._constant = constant
        self._noun = noun
        self._skip = skip
        self._own: list[str] | None = None

    def keys(self) -> tuple[str, ...]:
        """All keys, sorted. Imports none of the modules."""
        return tuple(sorted({*self._own_keys(), *(point.name for point in self._entry_points())}))

    def __contains__(self, key: str) -> bool:
        return key in self._own_keys() or any(point.name == key for point in self._entry_points())

    def get(self, key: str) -> Entry:
        """The entry of `key`. Raises UnknownKey, listing the known keys."""
        if key in self._own_keys():
            module = importlib.import_module(f"{self._package}.{key}")
            entry: Entry = getattr(module, self._constant)
            return entry
        for point in self._entry_points():
            if point.name == key:
                loaded: Entry = point.load()
                return loaded
        raise UnknownKey(f"no {self._noun} is called {key!r}; edgeinfer has: {', '.join(self.keys())}")

    def entries(self) -> dict[str, Entry]:
        """All entries by key. Imports every module."""
        return {key: self.get(key) for key in self.keys()}

    def _own_keys(self) -> list[str]:
        if self._own is None:
            spec = importlib.util.find_spec(self._package)
            paths: Any = spec.submodule_search_locations if spec is not None else None
            self._own = [module.name for module in pkgutil.iter_modules(paths) if module.name not in self._skip]
        return self._own

    def _entry_points(self) -> Sequence[EntryPoint]:
        if not _is_named(self._package):
            return ()
        from importlib.metadata import entry_points

        return tuple(entry_points(group=self._package))


def optional(package: str, module: str, constant: str) -> Any:
    """The constant that a module of a package exports; None if the folder of the package is not there."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.has_location:  # a folder without __init__.py is what is left of a deleted one
        return None
    return getattr(importlib.import_module(f"{package}.{module}"), constant)


def _is_named(group: str) -> bool:
    """Whether an installed package may add to a group. Faster than importlib.metadata, which reads all packages."""
    name = group.encode()
    for folder in map(Path, sys.path):
        if folder.is_file():  # an archive, whose packages only importlib.metadata can list
            return True
        with suppress(OSError):
            for package in os.listdir(folder):
                if package.endswith((".dist-info", ".egg-info")):
                    with suppress(OSError):
                        if name in (folder / package / "entry_points.txt").read_bytes():
                            return True
    return False
