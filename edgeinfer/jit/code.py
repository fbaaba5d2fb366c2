"""Code that can be compiled: kernels of a tape, functions that Python calls, and where the source of each is.

In: names, places of sources, argument records. Out: entries for a `KernelLibrary`. A name states everything that the
compiled code depends on besides the sources. Loads no compiler, and loads a source only when it must be compiled.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Code = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Code that a tape calls with (address of one argument record, worker, work split), and the record's dtype."""

    name: str
    load: Callable[[], Code]
    arguments: np.dtype[np.void]

    @property
    def n_arguments(self) -> int:
        return 3

    @property
    def returns(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """Code that Python calls with int64s and that returns an int64 or nothing."""

    name: str
    load: Callable[[], Code]
    n_arguments: int
    returns: bool = True


@dataclass(frozen=True, slots=True)
class CodeSource:
    """A function in a module of a package; with `parameters`, the result of calling that function with them."""

    package: str
    module: str
    name: str
    parameters: tuple[str | None, ...] | None = None

    def __call__(self) -> Code:
        found: Code = getattr(importlib.import_module(f"{self.package}.{self.module}"), self.name)
        made: Code = found if self.parameters is None else found(*self.parameters)
        return made


def entry(name: str) -> str:
    """The symbol of a kernel's or function's code."""
    return f"edgeinfer.{name}"
