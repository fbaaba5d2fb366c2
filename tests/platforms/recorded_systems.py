"""What other systems answer, by the documents of their makers and from records of real machines.

In: nothing. Out: by `sys.platform`, the values of names in modules of Python that say something of the machine, and
modules that only that system has. A Mac here has an Intel CPU, a Windows machine an x86-64 one, as what is compiled
really runs.

- `platform`: words in the form that a MacBook Air of 2017 and a PC with Windows 11 return (docs.python.org, platform).
- sysctl: Apple's names ("Determining system capabilities"), with the sizes of that MacBook's CPU, Intel's i5-5350U.
- GetLogicalProcessorInformationEx fails with no buffer and says how much it needs, then fills it (Microsoft Learn,
  sysinfoapi.h); its structures are those of winnt.h.
- `ctypes.CDLL(None)` is a TypeError on Windows, as LoadLibraryW needs a name.
- fcntl.F_NOCACHE is 48 (macOS, sys/fcntl.h); the call returns 0.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.platforms.windows_structures import CACHE, CORE, NODE, PACKAGE, record

F_NOCACHE = 48
MACBOOK_AIR: Mapping[str, int] = {
    "hw.physicalcpu": 2,
    "hw.logicalcpu": 4,
    "hw.l2cachesize": 262144,
    "hw.l3cachesize": 3145728,
    "hw.cpufrequency_max": 1800000000,
}
TWO_CORES = b"".join(
    [
        *(record(CORE, cpus=(cpu,), efficiency_class=0) for cpu in (0, 1)),
        *(record(CACHE, cpus=(cpu,), level=2, n_bytes=1 << 20) for cpu in (0, 1)),
        record(CACHE, cpus=(0, 1), level=3, n_bytes=32 << 20),
        record(PACKAGE, cpus=(0, 1)),
        record(NODE, cpus=(0, 1)),
    ]
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a system answers. `values`: of names, by module; `modules`: those that only it has."""

    values: Mapping[str, Mapping[str, object]]
    modules: Mapping[str, types.ModuleType] = field(default_factory=dict)


class MacLibrary:
    """The C library of a Mac: that of this machine, and sysctlbyname."""

    def __init__(self) -> None:
        self._own = ctypes.CDLL(None)

    def sysctlbyname(self, name: bytes, buffer: Any, size: Any, new: None, new_size: object) -> int:
        """Fill the buffer with an int of 4 or 8 bytes, -1 for names that are not known."""
        value = MACBOOK_AIR.get(name.decode())
        if value is None:
            return -1
        data = value.to_bytes(8 if value >> 31 else 4, "little")
        ctypes.memmove(buffer, data, len(data))
        size._obj.value = len(data)
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("malloc_trim", "mallopt", "sync_file_range", "sched_getcpu")):  # glibc's and Linux's
            raise AttributeError(f"dlsym: symbol not found: {name}")
        return getattr(self._own, name)


class Kernel32:
    """Functions of kernel32.dll."""

    SwitchToThread = ctypes.CDLL(None).sched_yield

    def GetLogicalProcessorInformationEx(self, relationship: int, buffer: Any, size: Any) -> int:  # noqa: N802
        needed, given = len(TWO_CORES), size._obj.value
        size._obj.value = needed
        if buffer is None or given < needed:
            return 0  # ERROR_INSUFFICIENT_BUFFER
        ctypes.memmove(buffer, TWO_CORES, needed)
        return 1

    def GetNumaAvailableMemoryNodeEx(self, node: Any, free: Any) -> int:  # noqa: N802
        free._obj.value = 4 << 30
        return 1


def no_library(name: str | None, *_: object, **__: object) -> object:
    """`ctypes.CDLL` on Windows."""
    if name is None:
        raise TypeError("LoadLibrary() argument 1 must be str, not None")
    raise OSError(f"Could not find module {name!r}")


class WindowsProcess(psutil.Process):
    """A process as psutil shows it on Windows: its memory record has other fields."""

    def memory_info(self) -> Any:
        own = super().memory_info()
        return types.SimpleNamespace(rss=own.rss, vms=own.vms, wset=own.rss, peak_wset=own.rss)


class WindowsProgram(subprocess.Popen[Any]):
    """`subprocess.Popen` on Windows: handles are passed on by `startupinfo`, and `pass_fds` is refused."""

    def __init__(self, *arguments: Any, startupinfo: StartupInfo | None = None, **options: Any) -> None:
        if "pass_fds" in options or "preexec_fn" in options:
            raise ValueError("not supported on Windows platforms")
        handles = () if startupinfo is None else tuple(startupinfo.lpAttributeList["handle_list"])
        super().__init__(*arguments, pass_fds=handles, **options)


class StartupInfo:
    """`subprocess.STARTUPINFO` (docs.python.org/3/library/subprocess.html#windows-popen-helpers)."""

    def __init__(self, *, lpAttributeList: Mapping[str, list[int]]) -> None:
        self.lpAttributeList = lpAttributeList


MSVCRT = types.ModuleType("msvcrt")
vars(MSVCRT).update(kbhit=lambda: False, getwch=lambda: "", get_osfhandle=lambda number: number)
SYSTEMS: Mapping[str, Facts] = {
    "win32": Facts(
        {
            "platform": {
                "system": lambda: "Windows",
                "release": lambda: "11",
                "machine": lambda: "AMD64",
                "processor": lambda: "Intel64 Family 6 Model 170 Stepping 4, GenuineIntel",
            },
            "os": {"cpu_count": lambda: 2, "set_handle_inheritable": os.set_inheritable},
            "subprocess": {"Popen": WindowsProgram, "STARTUPINFO": StartupInfo},
            "ctypes": {
                "CDLL": no_library,
                "WinDLL": lambda name, **_: Kernel32(),
                "windll": types.SimpleNamespace(kernel32=Kernel32()),
            },
            "psutil": {"Process": WindowsProcess},
        },
        {"msvcrt": MSVCRT},
    ),
    "darwin": Facts(
        {
            "platform": {
                "system": lambda: "Darwin",
                "release": lambda: "23.6.0",
                "machine": lambda: "x86_64",
                "processor": lambda: "i386",
            },
            "os": {"cpu_count": lambda: 4},
            "ctypes": {"CDLL": lambda name, **_: MacLibrary() if name is None else ctypes.CDLL(name)},
            "fcntl": {"F_NOCACHE": F_NOCACHE, "fcntl": lambda descriptor, command, value=0: 0},
        }
    ),
}
