"""Memory pressure: weights are given back before memory runs out, and taken again when it is long over."""

from __future__ import annotations

from collections.abc import Mapping

from edgeinfer.engine.offload.streaming import CALM_S, HIGH, LEAST_LOW_BYTES, MOST_LOW_BYTES, SPARE, Pressure
from edgeinfer.offload.weights import WeightReads

PIECE = 8 << 20
LOW_BYTES = MOST_LOW_BYTES
HIGH_BYTES, SPARE_BYTES = HIGH * LOW_BYTES, SPARE * LOW_BYTES


class Machine:
    """A lane with pieces on a machine whose free memory others change; a clock that is moved."""

    def __init__(self, n_pieces: int, others_leave: int, n_cached: int = 0, least_cached: int = 0) -> None:
        self.reading, self.record_use = WeightReads(), None
        self.pinned: Mapping[int, int] = dict.fromkeys(range(n_pieces), PIECE)
        self._all = n_pieces + n_cached
        self.cache_bytes, self._most_cached, self._least_cached = n_cached * PIECE, n_cached, least_cached
        self.others_leave = others_leave
        self.now = 0.0
        self.window_bytes = self._given_bytes = self.n_pinned = 0
        self.staying = frozenset[int]()

    def pin(self, numbers: frozenset[int]) -> None:
        self.n_pinned += 1
        self.pinned = dict.fromkeys(sorted(numbers | self.staying), PIECE)

    def shrink(self, n_bytes: int) -> int:
        given = min(n_bytes, self.window_bytes)
        self.window_bytes -= given
        self._given_bytes += given
        return given

    def resize_cache(self, n_bytes: int) -> None:
        self.cache_bytes = min(self._most_cached, max(self._least_cached, n_bytes // PIECE)) * PIECE

    def available(self) -> int:
        """What others leave and the lane has given back."""
        given = (self._all - len(self.pinned)) * PIECE - self.cache_bytes
        return self.others_leave + given + self._given_bytes


def looked(machine: Machine, pressure: Pressure, seconds: float = 2.0) -> int:
    """Time passes; how many pieces stay after a look."""
    machine.now += seconds
    pressure.look()
    return len(machine.pinned)


def opened(n_pieces: int, others_leave: int) -> tuple[Machine, Pressure]:
    machine = Machine(n_pieces, others_leave)
    return machine, Pressure(machine, machine.available, lambda: machine.now, 24 << 30)


def test_nothing_happens_while_there_is_enough() -> None:
    machine, pressure = opened(100, LOW_BYTES + 1)
    assert [looked(machine, pressure) for _ in range(5)] == [100] * 5


def test_memory_is_given_back_until_there_is_enough() -> None:
    machine, pressure = opened(100, LOW_BYTES // 2)
    kept = looked(machine, pressure)
    assert 0 < kept < 100
    assert machine.available() >= HIGH_BYTES
    assert looked(machine, pressure) == kept
    machine.others_leave = -2000 * PIECE
    assert looked(machine, pressure) == 0


def test_neurons_go_when_no_more_bundles_can() -> None:
    machine, pressure = opened(100, LOW_BYTES // 2)
    machine.window_bytes = whole = 50 * PIECE
    assert looked(machine, pressure) > 0
    assert machine.window_bytes == whole  # bundles sufficed, and they can come back
    machine.others_leave = LOW_BYTES // 2 - 100 * PIECE
    assert looked(machine, pressure) == 0
    assert 0 < machine.window_bytes < whole
    assert machine.available() >= HIGH_BYTES - PIECE
    machine.others_leave = 10 * SPARE_BYTES
    assert looked(machine, pressure, 2 * CALM_S) == 100


def test_what_must_stay_is_not_asked_for_again_and_again() -> None:
    machine, pressure = opened(3, 0)
    machine.staying = frozenset({0, 1, 2})
    assert [looked(machine, pressure) for _ in range(4)] == [3] * 4
    assert machine.n_pinned == 1


def test_it_is_not_looked_at_all_the_time() -> None:
    machine, pressure = opened(100, 0)
    assert looked(machine, pressure, 0.1) == 100
    assert looked(machine, pressure, 1.0) < 100


def test_memory_is_taken_again_when_it_has_long_been_there() -> None:
    machine, pressure = opened(100, 0)
    few = looked(machine, pressure)
    machine.others_leave = 10 * SPARE_BYTES
    assert looked(machine, pressure, CALM_S / 2) == few
    assert looked(machine, pressure, CALM_S) == 100


def test_a_cache_gives_back_first_and_takes_again_last() -> None:
    machine = Machine(10, LOW_BYTES // 2, n_cached=100, least_cached=8)
    pressure = Pressure(machine, machine.available, lambda: machine.now, 24 << 30)
    assert looked(machine, pressure) == 10
    few = machine.cache_bytes
    assert 8 * PIECE < few < 100 * PIECE
    assert machine.available() >= HIGH_BYTES
    machine.others_leave = -2000 * PIECE
    assert looked(machine, pressure) == 0
    assert machine.cache_bytes == 8 * PIECE
    machine.others_leave = SPARE_BYTES - 102 * PIECE + 12 * PIECE
    assert looked(machine, pressure, 2 * CALM_S) == 10
    assert 8 * PIECE < machine.cache_bytes <= 10 * PIECE
    machine.others_leave = 10 * SPARE_BYTES
    looked(machine, pressure, 2 * CALM_S)
    assert machine.cache_bytes == 100 * PIECE


def test_no_more_is_taken_than_leaves_enough() -> None:
    machine, pressure = opened(100, 0)
    few = looked(machine, pressure)
    machine.others_leave = SPARE_BYTES - (100 - few) * PIECE + 3 * PIECE
    assert few < looked(machine, pressure, 2 * CALM_S) <= few + 3
    assert machine.available() >= SPARE_BYTES


def test_a_small_container_is_low_on_less() -> None:
    machine = Machine(100, LOW_BYTES // 2)
    for total, low in ((100 << 20, LEAST_LOW_BYTES), (1 << 30, (1 << 30) // 40), (1 << 40, MOST_LOW_BYTES)):
        assert Pressure(machine, machine.available, lambda: machine.now, total).low_bytes == low
    pressure = Pressure(machine, machine.available, lambda: machine.now, 600 << 20)
    assert looked(machine, pressure) == 100
