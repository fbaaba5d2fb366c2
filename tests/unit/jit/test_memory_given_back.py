"""Memory that is given back: whole pages of it and nothing beside them, on systems that can be told, or nothing."""

from __future__ import annotations

import mmap
import sys

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
