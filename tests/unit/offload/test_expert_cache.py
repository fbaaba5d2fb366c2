"""The cache of experts: what was asked for is there, the rest by how often and how lately it was used."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from edgeinfer.errors import DeviceFailed, EngineClosed
from edgeinfer.jit.memory import paged
from edgeinfer.offload.bundle import PAGE_BYTES, Bundle
from edgeinfer.offload.expert_cache import ExpertCache
from edgeinfer.offload.slot_records import FLYING
from edgeinfer.offload.slots import Slots
from tests.unit.offload.paper_bundles import PaperSource
from tests.waiting import until

LAYERS, EXPERTS = 3, 8


def experts_of_layers() -> list[list[Bundle]]:
    """Experts that are a page each, numbered through all layers."""
    numbers = range(LAYERS * EXPERTS)
    found = [Bundle(number, f"blk.{number // EXPERTS}", 0, PAGE_BYTES, (), number % EXPERTS) for number in numbers]
    return [found[layer * EXPERTS : (layer + 1) * EXPERTS] for layer in range(LAYERS)]


def opened(source: PaperSource, n_slots: int, n_readers: int = 2, **options: bool) -> tuple[ExpertCache, np.ndarray]:
    memory = paged(n_slots, PAGE_BYTES)
    return ExpertCache(source, experts_of_layers(), memory, partial(Slots, source), n_readers, **options), memory


def have(cache: ExpertCache, memory: np.ndarray, layer: int, experts: list[int]) -> None:
    """Ask, wait, and look at what is there."""
    cache.ask(layer, experts)
    for expert, address in zip(experts, cache.wait(layer, experts), strict=True):
        slot = (address - memory.ctypes.data) // PAGE_BYTES
        assert (memory[slot] == layer * EXPERTS + expert).all()


def test_what_is_asked_for_is_there_however_few_slots() -> None:
    draw = np.random.default_rng(3)
    cache, memory = opened(PaperSource(), n_slots=5)
    for _ in range(200):
        layer = int(draw.integers(LAYERS))
        have(cache, memory, layer, sorted(draw.choice(EXPERTS, cache.most_at_once, replace=False).tolist()))
        cache.guess([((layer + 1) % LAYERS, int(number)) for number in draw.choice(EXPERTS, 3, replace=False)])
    cache.close()


def test_found_and_read_are_counted() -> None:
    source = PaperSource()
    cache, memory = opened(source, n_slots=8)
    have(cache, memory, 0, [1, 2])
    have(cache, memory, 0, [2, 3])
    reading = cache.reading
    cache.close()
    assert (reading.n_wanted, reading.n_found) == (4, 1)
    assert sorted(source.reads) == [1, 2, 3]
    assert reading.n_bytes == 3 * PAGE_BYTES


def test_what_is_used_often_outlives_what_was_used_last() -> None:
    for lru in (False, True):
        source = PaperSource()
        cache, memory = opened(source, n_slots=4, n_readers=1, lru=lru)
        for _ in range(10):
            have(cache, memory, 0, [0])
        for passing in range(1, 6):  # more than there are slots for
            have(cache, memory, 0, [passing])
        have(cache, memory, 0, [0])
        cache.close()
        assert source.reads.count(0) == (2 if lru else 1)


def test_uses_long_ago_count_less() -> None:
    source = PaperSource()
    cache, memory = opened(source, n_slots=4, n_readers=1)
    for _ in range(5):
        have(cache, memory, 0, [0])
    for _ in range(400):
        have(cache, memory, 0, [1])
    for passing in (2, 3, 2, 3, 4):
        have(cache, memory, 0, [passing])
    have(cache, memory, 0, [0])
    cache.close()
    assert source.reads.count(0) == 2


def test_a_guess_is_read_while_nothing_is_waited_for_and_proves_itself() -> None:
    source = PaperSource()
    cache, memory = opened(source, n_slots=8)
    have(cache, memory, 0, [0, 1])
    cache.guess([(1, 4), (1, 5)])
    until(lambda: len(source.reads) == 4)
    have(cache, memory, 1, [4, 6])
    reading = cache.reading
    cache.close()
    assert (reading.n_guessed, reading.n_proved, reading.n_found) == (2, 1, 1)


def test_a_guess_pushes_out_nothing_that_is_used_more() -> None:
    source = PaperSource()
    cache, memory = opened(source, n_slots=4, n_readers=1)
    for _ in range(6):
        have(cache, memory, 0, [0, 1, 2])
        have(cache, memory, 1, [3])
    n_reads = len(source.reads)
    cache.guess([(2, 7)])
    have(cache, memory, 0, [0, 1, 2])
    cache.close()
    assert len(source.reads) == n_reads


def test_no_guesses_where_none_are_wanted() -> None:
    source = PaperSource()
    cache, memory = opened(source, n_slots=8, guesses=False)
    cache.guess([(1, 4), (1, 5)])
    have(cache, memory, 0, [0])
    cache.close()
    assert source.reads == [0]


def test_a_read_error_is_raised_and_over_when_the_disk_works() -> None:
    source = PaperSource()
    source.broken.add(3)
    cache, memory = opened(source, n_slots=5)
    for _ in range(4):
        with pytest.raises(DeviceFailed, match="bundle 3"):
            have(cache, memory, 0, [2, 3])
    source.broken.clear()
    have(cache, memory, 0, [2, 3])
    have(cache, memory, 1, [0, 1, 2])
    cache.close()


def test_a_guess_that_cannot_be_read_fails_no_pass() -> None:
    source = PaperSource()
    source.broken.add(EXPERTS + 4)
    cache, memory = opened(source, n_slots=8, n_readers=1)
    for _ in range(4):
        source.gate.clear()
        cache.guess([(1, 4)])  # begun before what is asked for
        until(lambda: cache._slots[EXPERTS + 4] >= 0 and cache._states.orders[cache._slots[EXPERTS + 4]] == FLYING)
        cache.ask(0, [0, 1])
        source.gate.set()
        cache.wait(0, [0, 1])
        cache.guess([])
    with pytest.raises(DeviceFailed, match="bundle 12"):
        have(cache, memory, 1, [4])
    cache.close()


def test_a_pass_that_was_broken_off_leaves_room() -> None:
    source = PaperSource()
    cache, memory = opened(source, n_slots=5)
    source.gate.clear()
    for layer in range(LAYERS):
        cache.ask(layer, [0, 1, 2])  # nobody waits
    source.gate.set()
    for layer in range(LAYERS):
        have(cache, memory, layer, [3, 4, 5])
    cache.close()


def test_memory_is_given_back_by_the_experts_worth_least_and_taken_again() -> None:
    source = PaperSource()
    cache, memory = opened(source, n_slots=8, n_readers=1)
    for _ in range(3):
        have(cache, memory, 0, [0, 1])
    have(cache, memory, 1, [2, 3])
    cache.guess([(2, 4), (2, 5)])
    cache.resize(4 * PAGE_BYTES, most_used=2)
    assert (cache.nbytes, cache.most_at_once) == (4 * PAGE_BYTES, 3)
    assert len([page for page in memory if not page.any()]) >= 4
    n_reads = len(source.reads)
    have(cache, memory, 0, [0, 1])
    assert len(source.reads) == n_reads
    for layer in (1, 2, 0, 1):
        have(cache, memory, layer, [5, 6, 7])
    cache.resize(0, most_used=2)
    assert cache.nbytes == 3 * PAGE_BYTES
    have(cache, memory, 2, [0, 1])
    cache.resize(100 * PAGE_BYTES, most_used=2)
    assert cache.nbytes == 8 * PAGE_BYTES
    have(cache, memory, 2, list(range(7)))
    n_reads = len(source.reads)
    have(cache, memory, 2, list(range(7)))
    cache.close()
    assert len(source.reads) == n_reads


def test_closing_ends_who_waits_and_all_threads() -> None:
    source = PaperSource()
    source.gate.clear()
    cache, _ = opened(source, n_slots=4, n_readers=1)
    cache.ask(0, [1])
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            cache.wait(0, [1])
        except EngineClosed as reason:
            failures.append(reason)

    threads = [threading.Thread(target=wait), threading.Thread(target=cache.close)]
    for thread in threads:
        thread.start()
    threads[0].join(10)
    source.gate.set()
    threads[1].join(10)
    assert failures
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edgeinfer-experts")]


def test_nothing_is_read_into_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    source = PaperSource()
    cache, memory = opened(source, n_slots=8, n_readers=1)
    have(cache, memory, 0, [0, 1])
    source.gate.clear()
    cache.guess([(1, 4), (1, 5)])
    filling, orders = cache._filling, cache._states.orders
    want = filling.want

    def late(slots: Sequence[int], order: int) -> None:
        """Its reads end just before a guess is made again."""
        source.gate.set()
        until(lambda: not orders.any())
        source.gate.clear()
        want(slots, order)

    with monkeypatch.context() as patch:
        patch.setattr(filling, "want", late)
        cache.guess([(1, 4), (1, 5)])
    assert orders.any()
    cache.ask(1, [4, 5])
    opening = threading.Timer(0.1, source.gate.set)
    opening.start()
    slots = (cache.wait(1, [4, 5]) - memory.ctypes.data) // PAGE_BYTES
    assert not orders[slots].any()
    opening.join()
    cache.close()
