"""Neurons that fire together become neighbours, and every order is a permutation."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeinfer.engine.offload.neurons.order import order_of

N, GROUP = 1024, 32


def drawn(n_tokens: int, seed: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Scattered groups that fire together, more or less, some of them nearly always; and the group of each neuron."""
    member = np.random.default_rng(1).permutation(N) // GROUP
    draw = np.random.default_rng(seed)
    share = np.where(np.arange(N // GROUP) < 2, 0.95, 0.1)
    is_on = draw.random((n_tokens, N // GROUP)) < share
    return draw.random((n_tokens, N)) < np.where(is_on[:, member], 0.85, 0.01), member


def stretches(fired: NDArray[np.bool_]) -> float:
    """Reads of a token, if neurons next to each other are read together: a mean."""
    return float(np.mean([1 + np.count_nonzero(np.diff(np.flatnonzero(row)) > 2) for row in fired]))


def test_groups_lie_together_and_unseen_tokens_take_fewer_reads() -> None:
    fired, member = drawn(512, seed=2)
    order = order_of(fired)
    assert np.array_equal(np.sort(order), np.arange(N))
    assert np.count_nonzero(np.diff(member[order])) < 3 * N // GROUP  # by chance nearly N times
    unseen = drawn(64, seed=3)[0]
    assert stretches(unseen[:, order]) < 0.4 * stretches(unseen)


@pytest.mark.parametrize(("n_tokens", "n_neurons"), [(0, 8), (1, 1), (1, 40), (5, 3), (30, 700)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_any_table_gives_a_permutation(n_tokens: int, n_neurons: int, share: float) -> None:
    fired = np.random.default_rng(n_neurons).random((n_tokens, n_neurons)) < share
    order = order_of(fired)
    assert order.dtype == np.int32
    assert np.array_equal(np.sort(order), np.arange(n_neurons))
    never = np.flatnonzero(~fired.any(axis=0))
    assert np.array_equal(order[n_neurons - len(never) :], never)


def test_the_same_table_gives_the_same_order() -> None:
    fired, _ = drawn(200, seed=4)
    assert np.array_equal(order_of(fired), order_of(fired.copy()))
