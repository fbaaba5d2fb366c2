"""Memory that is given back: whole pages of it and nothing beside them, on systems that can be told, or nothing."""

from __future__ import annotations

import mmap
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from edgeinfer.jit.memory import give_back, paged

N_PAGES = 4096


def filled() -> np.ndarray:
    memory = paged(N_PAGES * mmap.PAGESIZE)
    memory[:] = 7
    return memory


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take pages when they need them")
def test_pages_are_gone_at_once_and_can_be_used_again() -> None:
    memory = filled()
    before = psutil.Process().memory_info().rss
    give_back(memory)
    assert before - psutil.Process().memory_info().rss > memory.nbytes * 0.9
    assert not memory.any()
    memory[:] = 9
    assert np.all(memory == 9)


def test_what_lies_beside_stays() -> None:
    memory = filled()
    start, stop = mmap.PAGESIZE + 100, 9 * mmap.PAGESIZE - 100
    give_back(memory[start:stop])
    assert np.all(memory[: 2 * mmap.PAGESIZE] == 7)
    assert np.all(memory[8 * mmap.PAGESIZE :] == 7)
    give_back(memory[100:200])
    give_back(memory[100 : mmap.PAGESIZE + 100])
    assert np.all(memory[: 2 * mmap.PAGESIZE] == 7)


@pytest.mark.parametrize("system", ["win32", "darwin", "freebsd"])
def test_other_systems_lose_nothing_but_those_pages(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = filled()
    monkeypatch.setattr(sys, "platform", system)
    give_back(memory[: 8 * mmap.PAGESIZE])
    assert np.all(memory[8 * mmap.PAGESIZE :] == 7)
    assert np.all(memory == 7) or system == "darwin"
    memory[:] = 9
    assert np.all(memory == 9)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize("call", ["", "keep_one_arena()"])
def test_threads_share_one_arena(call: str, tmp_path: Path) -> None:
    """In a process of its own; without the call each of several threads has its arena."""
    told = tmp_path / "told"
    code = f"""
import ctypes, threading
from edgeinfer.jit.memory import keep_one_arena
{call}
libc, all_there = ctypes.CDLL(None), threading.Barrier(4)
libc.malloc.restype = ctypes.c_void_p
def take():
    libc.malloc(1000)
    all_there.wait()
threads = [threading.Thread(target=take) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"{told}", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    n_arenas = told.read_text().count("<heap nr")
    assert n_arenas == 1 if call else n_arenas > 1
