"""What a meter says that windows would find, against windows that hold what was used last."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from edgeinfer.offload.neurons.window import FiringMeter

NEURONS, TOKENS = 2000, 400


def tokens(alike: float) -> list[np.ndarray]:
    """Neurons that fire for each token: a tenth of them, some far more often than others if `alike`."""
    draw = np.random.default_rng(2)
    chance = np.clip(0.1 * (1 - alike) + alike * (draw.random(NEURONS) < 0.1), 0, 0.98)
    return [np.flatnonzero(draw.random(NEURONS) < chance) for _ in range(TOKENS)]


def found_by_a_window(fired: list[np.ndarray], room: int) -> float:
    """Share that a window finds which drops what was used longest ago."""
    held, n_found, n_wanted = OrderedDict[int, None](), 0, 0
    for number, neurons in enumerate(fired):
        for neuron in neurons.tolist():
            if number >= TOKENS // 4:
                n_wanted += 1
                n_found += neuron in held
        for neuron in neurons.tolist():
            held.pop(neuron, None)
            held[neuron] = None
        while len(held) > room:
            held.popitem(last=False)
    return n_found / n_wanted


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.9])
def test_what_windows_of_all_sizes_would_find(alike: float) -> None:
    fired, meter = tokens(alike), FiringMeter([NEURONS, 64])
    for neurons in fired:
        meter.see(0, neurons, 1, len(neurons))
        meter.see(1, np.arange(0), 1, 0)
    seen = meter.use
    n_fired = sum(map(len, fired))
    assert seen.n_tokens == TOKENS
    assert seen.share == pytest.approx(n_fired / TOKENS / (NEURONS + 64))
    assert len(seen.found) == 6
    assert list(seen.found) == sorted(seen.found)
    for held, share in seen.found:
        assert share == pytest.approx(found_by_a_window(fired, int(held * NEURONS)), abs=0.04)


def test_passes_of_many_tokens_count_for_how_many_fire_and_not_for_what_is_found() -> None:
    meter = FiringMeter([100])
    meter.see(0, np.arange(60), 8, 80)
    seen = meter.use
    assert (seen.share, seen.found, seen.n_tokens) == (0.1, (), 8)
