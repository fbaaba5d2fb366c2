"""Loads object code into executable memory as a linker would, for Linux on x86-64: LLVM's own loader costs 40 MB.

In: an ELF file of LLVM's large code model, so that every address in it is a 64-bit number (System V ABI, AMD64
supplement, "Relocation Types"). Out: addresses of its symbols. Knows nothing of kernels.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from edgeinfer.errors import EdgeInferError

MAGIC = b"\x7fELF\x02\x01"
"""64 bits, little-endian."""
RELOCATABLE, X86_64 = 1, 62
SYMBOLS, RELOCATIONS, NO_BITS = 2, 4, 8
ALLOCATED = 2
ABSOLUTE, RELATIVE = 1, 24
"""R_X86_64_64 and R_X86_64_PC64."""
FIRST_RESERVED = 0xFF00
"""Section numbers from here on mean something else than a section."""


class NotLoadable(EdgeInferError):
    """Object code with something that this loader does not know; LLVM's does."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class _Symbol(NamedTuple):
    name: int
    info: int
    visibility: int
    section: int
    value: int
    size: int


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """Code in memory, for as long as this lives."""

    memory: mmap.mmap
    addresses: dict[str, int]


def can_load() -> bool:
    """Whether this system is one that `load` knows."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def load(code: bytes) -> LoadedCode:
    """Load an object file. Raises NotLoadable."""
    try:
        return _Loading(code).run()
    except (struct.error, IndexError, OSError, ValueError) as error:
        raise NotLoadable(f"object code of {len(code)} bytes cannot be loaded: {error}") from error


class _Loading:
    """One object file on its way into memory."""

    def __init__(self, code: bytes) -> None:
        self._code = code
        if code[:6] != MAGIC:
            raise NotLoadable("not an ELF file of 64 bits")
        kind, machine = struct.unpack_from("<HH", code, 16)
        if (kind, machine) != (RELOCATABLE, X86_64):
            raise NotLoadable(f"an ELF file of kind {kind} for machine {machine}, not object code for x86-64")
        (start,) = struct.unpack_from("<Q", code, 40)
        size, count = struct.unpack_from("<HH", code, 58)
        if size != struct.calcsize("<IIQQQQIIQQ"):
            raise NotLoadable(f"section headers of {size} bytes")
        table = code[start : start + size * count]
        if not count or len(table) != size * count:
            raise NotLoadable("the object code is cut short")
        self._sections = [_Section(*fields) for fields in struct.iter_unpack("<IIQQQQIIQQ", table)]
        self._places: dict[int, int] = {}
        """Where each section starts in the memory."""

    def run(self) -> LoadedCode:
        memory = self._placed()
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        symbols, addresses = list[int](), dict[str, int]()
        for name, symbol in self._symbols():
            symbols.append(self._address(name, symbol, start))
            if name and 0 < symbol.section < FIRST_RESERVED:
                addresses[name] = symbols[-1]
        for section in self._sections:
            if section.kind == RELOCATIONS and section.info in self._places:
                self._relocate(memory, section, symbols, start)
        _make_executable(start, len(memory))
        return LoadedCode(memory, addresses)

    def _content(self, section: _Section) -> bytes:
        content = self._code[section.offset : section.offset + section.size]
        if len(content) != section.size:
            raise NotLoadable("the object code is cut short")
        return content

    def _placed(self) -> mmap.mmap:
        """New memory with the sections that code uses."""
        end = 0
        for number, section in enumerate(self._sections):
            if section.flags & ALLOCATED and section.size:
                end += -end % max(1, section.alignment)
                self._places[number] = end
                end += section.size
        memory = mmap.mmap(-1, max(1, end), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for number, place in self._places.items():
            section = self._sections[number]
            if section.kind != NO_BITS:
                memory[place : place + section.size] = self._content(section)
        return memory

    def _symbols(self) -> Iterator[tuple[str, _Symbol]]:
        for section in self._sections:
            if section.kind == SYMBOLS:
                names = self._content(self._sections[section.link])
                for fields in struct.iter_unpack("<IBBHQQ", self._content(section)):
                    symbol = _Symbol(*fields)
                    yield names[symbol.name : names.index(b"\0", symbol.name)].decode(), symbol

    def _address(self, name: str, symbol: _Symbol, start: int) -> int:
        """Where a symbol lies; 0 for those that no code uses."""
        if symbol.section in self._places:
            return start + self._places[symbol.section] + symbol.value
        return _of_system(name) if symbol.section == 0 and name else 0

    def _relocate(self, memory: mmap.mmap, section: _Section, symbols: list[int], start: int) -> None:
        """Write addresses into one section."""
        place = self._places[section.info]
        for offset, info, addend in struct.iter_unpack("<QQq", self._content(section)):
            at, kind, target = place + offset, info & 0xFFFFFFFF, symbols[info >> 32] + addend
            if kind not in (ABSOLUTE, RELATIVE):
                raise NotLoadable(f"relocation {kind} is unknown")
            struct.pack_into("<Q", memory, at, (target - (start + at if kind == RELATIVE else 0)) & 0xFFFFFFFFFFFFFFFF)


def _of_system(name: str) -> int:
    """The address of a function of the C library, such as memcpy."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except AttributeError as error:
        raise NotLoadable(f"the system has no function {name}") from error
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _make_executable(start: int, size: int) -> None:
    """Let memory be executed, and written no more."""
    system = ctypes.CDLL(None, use_errno=True)
    protection = mmap.PROT_READ | mmap.PROT_EXEC
    if system.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), protection):
        raise OSError(ctypes.get_errno(), "memory cannot be made executable")
