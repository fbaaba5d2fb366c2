"""Memory for single neurons: shared out so that a token takes little time, and refused with a number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.machine.profile import Curve, Disk
from edgeinfer.scheduling.offload.neurons.firing import Firing
from edgeinfer.scheduling.offload.neurons.placement import LEAST_NEURONS, SPARING, NeuronLoads, place_neurons
from edgeinfer.scheduling.offload.reads import SMALL_READERS, read_times
from edgeinfer.scheduling.offload.weight_placement import WeightPiece, WeightPlacement, place_weights

MB = 1 << 20
LAYERS = [WeightPiece(MB)] * 200
DISK = Disk({1: Curve((4096, MB), (1e8, 8e8)), 4: Curve((4096, MB), (3e8, 1.9e9)), 16: Curve((4096, MB), (6e8, 2e9))})

NEURONS = NeuronLoads(400 * MB, 2 * MB, MB, MB // 4, 200_000, 8)


ALIKE = Firing(0.1, ((0.1, 0.9), (0.2, 0.95), (0.5, 0.99)), 100)
"""Neurons of which the same fire again and again."""


def token_s(found: WeightPlacement, firing: Firing) -> float:
    """Seconds of reading for a token."""
    times = read_times(DISK, SMALL_READERS)
    dense = (200 - len(found.pinned)) * MB
    return dense * times.byte_s + replace(NEURONS, firing=firing).in_memory(found.record_bytes, times).reads().seconds


@pytest.mark.parametrize("firing", [Firing(), ALIKE])
@pytest.mark.parametrize("budget", [30, 100, 150, 230, 300, 500, 700])
def test_memory_is_shared_out_so_that_a_token_takes_little(budget: int, firing: Firing) -> None:
    found = place_neurons(LAYERS, replace(NEURONS, firing=firing), budget * MB, DISK, "it")
    held = len(found.pinned) * MB + found.window_bytes + found.record_bytes
    assert budget * MB - 4 * MB <= held <= budget * MB or found.streamed_bytes == 0
    assert found.record_bytes >= NEURONS.reading_bytes + int(LEAST_NEURONS * NEURONS.nbytes)
    least = NEURONS.least_room
    for n_bytes in (least, (least + budget * MB) // 2, budget * MB - 8 * MB):
        rest = place_weights(LAYERS, min(200 * MB, budget * MB - n_bytes), DISK, "it")
        other = replace(rest, record_bytes=min(n_bytes, NEURONS.nbytes + NEURONS.reading_bytes))
        assert token_s(found, firing) <= 1.05 * SPARING * token_s(other, firing)


def test_neurons_that_fire_again_have_room_before_pieces_that_every_pass_needs() -> None:
    by_chance, alike = (
        place_neurons(LAYERS, replace(NEURONS, firing=each), 150 * MB, DISK, "it") for each in (Firing(), ALIKE)
    )
    assert alike.record_bytes - NEURONS.reading_bytes >= 0.1 * NEURONS.nbytes
    assert len(alike.pinned) < 150
    assert alike.streamed_bytes < by_chance.streamed_bytes


def test_too_little_for_neurons_is_refused_with_a_number() -> None:
    with pytest.raises(DoesNotFit, match="single neurons"):
        place_neurons(LAYERS, NEURONS, 10 * MB, DISK, "it")
