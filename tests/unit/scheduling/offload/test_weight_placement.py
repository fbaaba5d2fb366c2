"""What stays in memory: never more than there is room for, as much as there is, evenly, and refused with a number."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.machine.profile import Curve, Disk
from edgeinfer.scheduling.offload.weight_placement import (
    LONGEST_TOKEN_S,
    ExpertLoads,
    WeightPiece,
    pinned_loads,
    place_mixture,
    place_weights,
    readers,
    room_for_staying,
)

MB = 1 << 20
LAYERS = [WeightPiece(MB)] * 200
DISK = Disk({1: Curve((4096, MB), (1e8, 8e8)), 4: Curve((4096, MB), (3e8, 1.9e9)), 16: Curve((4096, MB), (6e8, 2e9))})


def test_all_stay_where_there_is_room_for_all() -> None:
    found = place_weights(LAYERS, 200 * MB, DISK, "it")
    assert len(found.pinned) == 200
    assert (found.window_bytes, found.streamed_bytes) == (0, 0.0)


@pytest.mark.parametrize("room", [3, 10, 50, 100, 150, 199])
def test_room_is_used_and_kept_to(room: int) -> None:
    found = place_weights(LAYERS, room * MB, DISK, "it")
    held = len(found.pinned) * MB + found.window_bytes
    assert held <= room * MB
    assert held >= room * MB - 2 * MB
    assert found.streamed_bytes == (200 - len(found.pinned)) * MB


def test_what_is_read_lies_evenly_between_what_stays() -> None:
    found = place_weights(LAYERS, 106 * MB, DISK, "it")  # a window of six
    streamed = [number for number in range(200) if number not in found.pinned]
    assert max(after - before for before, after in pairwise(streamed)) <= 3


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([0.1, 1.0, 2.0])), min_size=1), st.integers(0, 2000))
def test_more_uses_stay_first(pieces: list[tuple[int, float]], room: int) -> None:
    loads = [WeightPiece(n_bytes, uses) for n_bytes, uses in pieces]
    pinned = pinned_loads(loads, room)
    assert sum(loads[number].nbytes for number in pinned) <= room
    for uses in (2.0, 1.0):
        wanted = {number for number, load in enumerate(loads) if load.uses >= uses}
        if sum(loads[number].nbytes for number in wanted) <= room:
            assert wanted <= pinned
    if sum(load.nbytes for load in loads) <= room:
        assert len(pinned) == len(loads)


def test_too_little_for_a_window_is_refused_with_what_would_work() -> None:
    with pytest.raises(DoesNotFit, match=r"1000 kB of memory .* 2098 kB at least would work"):
        place_weights(LAYERS, 10**6, DISK, "it")
    assert place_weights(LAYERS, 2098 * 1000, DISK, "it").window_bytes == 2 * MB


def test_hopeless_plans_are_refused_with_the_number_that_decides() -> None:
    huge = [WeightPiece(100 * MB)] * 4000
    seconds = 4000 * 100 * MB / 2e9
    assert seconds > LONGEST_TOKEN_S
    with pytest.raises(DoesNotFit, match=r"for every token, 2\d\d s at 2 GB/s.* GB more memory"):
        place_weights(huge, 1000 * MB, DISK, "it")
    assert place_weights(huge, 1000 * MB, None, "it").streamed_bytes > 0  # nobody knows the disk


def test_the_fewest_readers_that_are_nearly_as_fast() -> None:
    assert readers(DISK, MB) == 4
    assert readers(DISK, 4096) == 16
    assert readers(Disk({1: Curve.level(1e9)}), MB) == 4  # beside cores that compute
    assert readers(Disk({1: Curve.level(1e9), 16: Curve.level(2e9)}), MB) == 6  # more gain nothing
    assert readers(None, MB) >= 2


def test_experts_get_what_is_left() -> None:
    dense, experts = [WeightPiece(MB)] * 100, ExpertLoads(count=640, nbytes=MB, used=80, active=8)
    found = place_mixture(dense, experts, 356 * MB, DISK, "it")
    assert len(found.pinned) == 100
    assert found.n_experts == 256
    assert found.streamed_bytes == pytest.approx(80 * MB * (1 - 256 / 640))
    tight = place_mixture(dense, experts, 40 * MB, DISK, "it")
    assert tight.n_experts >= 8 + tight.n_readers
    assert 0 < len(tight.pinned) < 100
    with pytest.raises(DoesNotFit, match="8 experts of 1049 kB a layer"):
        place_mixture(dense, experts, 10 * MB, DISK, "it")


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
    st.integers(1, 40),
    st.integers(2, 9),
    st.sampled_from([None, DISK]),
)
def test_what_is_said_to_be_enough_for_experts_is_and_less_is_not(
    sizes: list[int], expert: int, active: int, disk: Disk | None
) -> None:
    loads, experts = [WeightPiece(size * 1000) for size in sizes], ExpertLoads(64, expert * 1000, active, active)
    with pytest.raises(DoesNotFit) as refusal:
        place_mixture(loads, experts, 1, disk, "it")
    said = re.search(r"(\d+) kB at least would work", str(refusal.value))
    assert said is not None
    works = int(said[1]) * 1000
    assert place_mixture(loads, experts, works, disk, "it").n_experts >= active
    with pytest.raises(DoesNotFit):
        place_mixture(loads, experts, works - 1000, disk, "it")


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1), st.integers(1, 40))
def test_what_must_stay_does_in_what_is_said_to_be_enough(pieces: list[tuple[int, bool]], expert: int) -> None:
    loads = [WeightPiece(size * 1000, 2.0 if stays else 1.0) for size, stays in pieces]
    experts, staying = ExpertLoads(64, expert * 1000, 4, 4), {n for n, load in enumerate(loads) if load.uses == 2.0}
    works = room_for_staying(loads, experts, None, sum(loads[number].nbytes for number in staying))
    assert place_mixture(loads, experts, works, None, "it").pinned >= staying


def test_what_would_work_counts_what_must_stay() -> None:
    loads, experts = [WeightPiece(MB), WeightPiece(30 * MB, 2.0)] * 20, ExpertLoads(64, MB, 4, 4)
    with pytest.raises(DoesNotFit) as refusal:
        place_mixture(loads, experts, 20 * MB, None, "it")
    found = re.search(r"([\d.]+) MB at least would work", str(refusal.value))
    assert found is not None
    works = int(float(found[1]) * 1e6)
    assert place_mixture(loads, experts, works, None, "it").pinned >= {n for n in range(40) if n % 2}
