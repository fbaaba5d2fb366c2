"""The window: every bundle in order, at its place, again and again; and what goes wrong."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeinfer.errors import DeviceFailed, EngineClosed, UnsupportedModel
from edgeinfer.jit.memory import paged
from edgeinfer.offload.bundle import PAGE_BYTES
from edgeinfer.offload.window import BundleWindow, ring_places
from tests.unit.offload.paper_bundles import PaperSource, bundles_of

SIZES = [3, 1, 4, 2, 2, 5, 1]


def walk(window: BundleWindow, memory: np.ndarray, sizes: list[int], stop: int | None = None) -> None:
    """A pass, or its beginning: each bundle's bytes are there when it is its turn, until it is let go."""
    window.begin()
    for number, pages in enumerate(sizes[:stop]):
        window.wait(number)
        place = window.place(number)
        assert (memory[place : place + pages * PAGE_BYTES] == number).all()
        window.release()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 40))
def test_no_piece_is_overwritten_before_it_was_let_go(sizes: list[int], spare: int) -> None:
    room = max(sizes) + spare
    places, distances = ring_places(sizes, room)
    count = len(sizes)
    assert all(place >= 0 and place + size <= room for place, size in zip(places, sizes, strict=True))
    for number in range(count):
        between = [(number - back) % count for back in range(1, distances[number])]
        mine = range(places[number], places[number] + sizes[number])
        for other in between:
            assert places[other] + sizes[other] <= mine.start or mine.stop <= places[other]


@pytest.mark.parametrize("n_readers", [1, 3])
@pytest.mark.parametrize("room", [5, 8, 100])
def test_passes_see_every_bundle_in_order(room: int, n_readers: int) -> None:
    memory, source = paged(room * PAGE_BYTES), PaperSource()
    window = BundleWindow(source, bundles_of(SIZES), memory, n_readers)
    for _ in range(20):
        walk(window, memory, SIZES)
    window.close()
    reading = window.reading
    assert reading.n_passes == 20
    assert reading.n_bytes == sum(size * PAGE_BYTES * count for size, count in zip(*_counted(source), strict=True))


def _counted(source: PaperSource) -> tuple[list[int], list[int]]:
    return SIZES, [source.reads.count(number) for number in range(len(SIZES))]


def test_a_pass_that_was_broken_off_is_followed_by_a_whole_one() -> None:
    memory, source = paged(8 * PAGE_BYTES), PaperSource(delay_s=0.001)
    window = BundleWindow(source, bundles_of(SIZES), memory, 3)
    for stop in (1, 3, 6, 0, 2):
        walk(window, memory, SIZES, stop)
        walk(window, memory, SIZES)
    window.begin()
    window.wait(0)  # and not let go
    walk(window, memory, SIZES)
    window.close()


def test_a_read_error_is_raised_where_the_bundle_is_waited_for_and_is_over_when_the_disk_works() -> None:
    memory, source = paged(8 * PAGE_BYTES), PaperSource()
    source.broken.add(4)
    window = BundleWindow(source, bundles_of(SIZES), memory, 2)
    for _ in range(2):
        with pytest.raises(DeviceFailed, match="bundle 4"):
            walk(window, memory, SIZES)
    source.broken.clear()
    walk(window, memory, SIZES)
    window.close()


def test_bundles_out_of_order_are_refused() -> None:
    window = BundleWindow(PaperSource(), bundles_of(SIZES), paged(8 * PAGE_BYTES), 1)
    window.begin()
    with pytest.raises(UnsupportedModel, match="twice"):
        window.wait(3)
    window.close()


def test_closing_ends_who_waits_and_all_threads() -> None:
    source = PaperSource()
    source.gate.clear()
    window = BundleWindow(source, bundles_of(SIZES), paged(8 * PAGE_BYTES), 2)
    window.begin()
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            window.wait(0)
        except EngineClosed as reason:
            failures.append(reason)

    waiter = threading.Thread(target=wait)
    waiter.start()
    closer = threading.Thread(target=window.close)
    closer.start()
    waiter.join(10)
    source.gate.set()
    closer.join(10)
    assert failures
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("edgeinfer-read")]
    window.close()


def test_an_empty_window_lets_passes_through() -> None:
    window = BundleWindow(PaperSource(), [], paged(0), 2)
    window.begin()
    assert window.reading.n_bytes == 0
    window.close()


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(0, 8), st.integers(1, 4))
def test_any_sizes_in_any_room(sizes: list[int], spare: int, n_readers: int) -> None:
    memory = paged((max(sizes) + spare) * PAGE_BYTES)
    window = BundleWindow(PaperSource(), bundles_of(sizes), memory, n_readers)
    for _ in range(3):
        walk(window, memory, sizes)
    window.close()
