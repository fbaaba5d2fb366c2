"""Object code in memory: put there by our own loader where it can, by LLVM elsewhere.

In: object code, the name of a symbol. Out: its address, for as long as the memory lives. LLVM is loaded when it is
needed. Knows nothing of kernels.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from edgeinfer.jit import object_file
from edgeinfer.jit.object_file import LoadedCode, NotLoadable


class CodeMemory:
    """The code of one library."""

    def __init__(self) -> None:
        self._loaded: list[LoadedCode] = []
        self._engine: Any = None

    def add(self, code: bytes, symbol: str) -> int:
        """Load an object file and return the address of one of its symbols."""
        if object_file.can_load():
            with suppress(NotLoadable, KeyError):
                loaded = object_file.load(code)
                address = loaded.addresses[symbol]
                self._loaded.append(loaded)
                return address
        return self._add_by_llvm(code, symbol)

    def _add_by_llvm(self, code: bytes, symbol: str) -> int:
        import llvmlite.binding as llvm

        from edgeinfer.jit.machine_code import target_machine

        if self._engine is None:
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        address: int = self._engine.get_function_address(symbol)
        return address
