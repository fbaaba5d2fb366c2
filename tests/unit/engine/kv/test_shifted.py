"""Tokens taken from other positions of other sequences, through lanes that store token ids."""

from __future__ import annotations

import numpy as np
import pytest

from edgeinfer.backends.capabilities import LaneCapabilities
from edgeinfer.engine.kv.kvcache import KVCache
from edgeinfer.engine.kv.shifted import ShiftedTokens
from edgeinfer.errors import ContextOverflow, DoesNotFit
from edgeinfer.graph.operands import Windows
from edgeinfer.graph.step import PAGE, Int32s
from tests.unit.engine.kv.test_kvcache import apply, make_batch
from tests.unit.engine.kv.test_window_pages import N_PAGES as MANY_PAGES
from tests.unit.engine.kv.test_window_pages import WINDOWS, WindowLane
from tests.unit.engine.lane import SlotLane, TurningLane

N_PAGES, N_CONTEXT = 12, 8 * PAGE


class TurningWindowLane(WindowLane):
    """The same with layers that keep a window."""

    @property
    def capabilities(self) -> LaneCapabilities:
        return LaneCapabilities(windows=self, turning=self)

    def turn_slots(
        self, sources: Int32s, targets: Int32s, distance: int, n_unseen: int = 0, scale: float = 1.0
    ) -> None:
        SlotLane.copy_slots(self, sources, targets)
        self.kept[self._located(targets[n_unseen:])] = self.kept[self._located(sources[n_unseen:])]


def read(cache: KVCache, lane: SlotLane, sequence: int, tokens: list[int]) -> None:
    """Evaluate tokens as a chain, and keep them."""
    batch = make_batch([(sequence, cache.n_cached(sequence), tokens, list(range(-1, len(tokens) - 1)))])
    placed = cache.place(batch)
    apply(placed.copies, lane)
    lane.run(placed.step)
    apply(cache.commit(sequence, np.arange(len(tokens), dtype=np.int32)), lane)


def sees(cache: KVCache, lane: SlotLane, sequence: int) -> list[int]:
    """The tokens that a further one attends to."""
    placed = cache.place(make_batch([(sequence, cache.n_cached(sequence), [999], [-1])]))
    apply(placed.copies, lane)
    lane.run(placed.step)
    cache.commit(sequence, np.zeros(0, np.int32))
    return lane.seen[0][:-1]


@pytest.mark.parametrize("n_before", [0, 5, PAGE, 2 * PAGE - 1])
@pytest.mark.parametrize(("first", "n_tokens"), [(3, 200), (PAGE, PAGE), (100, 1), (0, 3 * PAGE + 9), (7, 0)])
def test_tokens_continue_another_sequence(n_before: int, first: int, n_tokens: int) -> None:
    cache, lane = KVCache(N_PAGES, N_CONTEXT), TurningLane(N_PAGES)
    donor, sequence = cache.create(), cache.create()
    text, own = list(range(1000, 1250)), list(range(2000, 2000 + n_before))
    read(cache, lane, donor, text)
    if own:
        read(cache, lane, sequence, own)
    twin = cache.branch(sequence)  # shares the last page, which the sequence must not write to
    assert ShiftedTokens(cache, lane, lane).append(sequence, donor, first, n_tokens)
    assert lane.moves == [(n_before - first, n_tokens)]
    assert sees(cache, lane, sequence) == [*own, *text[first : first + n_tokens]]
    assert sees(cache, lane, donor) == text
    assert sees(cache, lane, twin) == own
    for each in (donor, sequence, twin):
        cache.free(each)
    assert cache.n_free_pages == N_PAGES


def test_what_does_not_fit_changes_nothing() -> None:
    cache, lane = KVCache(N_PAGES, N_CONTEXT), TurningLane(N_PAGES)
    donor, sequence, other = (cache.create() for _ in range(3))
    shifted = ShiftedTokens(cache, lane, lane)
    read(cache, lane, donor, list(range(1000, 1300)))
    read(cache, lane, sequence, list(range(2000, 2100)))
    read(cache, lane, other, list(range(3000, 3240)))
    with pytest.raises(DoesNotFit):
        shifted.append(sequence, donor, 0, 300)
    assert sees(cache, lane, sequence) == list(range(2000, 2100))
    for wrong in ((sequence, donor, 200, 101), (sequence, donor, -1, 5), (sequence, sequence, 0, 5)):
        with pytest.raises(ValueError, match="has no"):
            shifted.append(*wrong)
    cache.free(other)
    assert shifted.append(sequence, donor, 0, 300)
    with pytest.raises(ContextOverflow):
        shifted.append(sequence, donor, 0, N_CONTEXT - 300)
    assert sees(cache, lane, sequence) == [*range(2000, 2100), *range(1000, 1300)]


def test_a_signal_in_between_leaves_no_empty_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, lane = KVCache(N_PAGES, N_CONTEXT), TurningLane(N_PAGES)
    donor, sequence = cache.create(), cache.create()
    read(cache, lane, donor, list(range(1000, 1200)))
    read(cache, lane, sequence, [1, 2, 3])

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lane, "turn_slots", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ShiftedTokens(cache, lane, lane).append(sequence, donor, 50, 100)
    assert sees(cache, lane, sequence) == [1, 2, 3]


def windowed() -> tuple[KVCache, TurningWindowLane, int, int]:
    """A cache with windows and two empty sequences."""
    cache, lane = KVCache(MANY_PAGES, N_CONTEXT, windows=WINDOWS), TurningWindowLane()
    return cache, lane, cache.create(), cache.create()


def read_slowly(cache: KVCache, lane: TurningWindowLane, sequence: int, tokens: list[int]) -> None:
    for first in range(0, len(tokens), 50):
        placed = cache.place(
            make_batch(
                [
                    (
                        sequence,
                        cache.n_cached(sequence),
                        part := tokens[first : first + 50],
                        list(range(-1, len(part) - 1)),
                    )
                ]
            )
        )
        assert cache.windows is not None
        cache.windows.tell(lane)
        apply(placed.copies, lane)
        lane.run(placed.step)
        apply(cache.commit(sequence, np.arange(len(part), dtype=np.int32)), lane)


@pytest.mark.parametrize("n_before", [4, 70])
def test_the_window_comes_along(n_before: int) -> None:
    cache, lane, donor, sequence = windowed()
    text, own = list(range(1000, 1380)), list(range(2000, 2000 + n_before))
    read_slowly(cache, lane, donor, text)
    read_slowly(cache, lane, sequence, own)
    assert ShiftedTokens(cache, lane, lane).append(sequence, donor, 10, 360)
    read_slowly(cache, lane, sequence, [5, 6, 7])
    assert lane.in_window[0][-WINDOWS.tokens :] == [*own, *text[10:370], 5][-WINDOWS.tokens :]
    for n_tokens in (n_before + 362, n_before + 320, n_before + 200):  # going back leads to where all is there
        n_left = cache.truncate(sequence, min(n_tokens, cache.n_cached(sequence)))
        read_slowly(cache, lane, sequence, [8])
        assert lane.in_window[0] == [*[*own, *text[10:370], 5, 6, 7][:n_left], 8][-WINDOWS.tokens :]
        assert cache.truncate(sequence, n_left) == n_left


def test_a_window_that_is_gone_is_not_taken() -> None:
    cache, lane = KVCache(MANY_PAGES, N_CONTEXT, windows=Windows(tokens=100, n_pages=6, n_spare=1)), TurningWindowLane()
    donor, sequence = cache.create(), cache.create()
    read_slowly(cache, lane, donor, list(range(1000, 1450)))
    read_slowly(cache, lane, sequence, [1, 2, 3])
    shifted = ShiftedTokens(cache, lane, lane)
    assert not shifted.append(sequence, donor, 10, 150)
    assert cache.n_cached(sequence) == 3
    assert shifted.append(sequence, donor, 390, 60)
    assert cache.n_cached(sequence) == 63
