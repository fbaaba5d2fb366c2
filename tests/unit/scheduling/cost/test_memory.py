"""The fit check: numbers in, verdict out."""

import pytest

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.cost.memory import PROGRAM_BYTES, MemoryNeed, fitting_context, missing_bytes, require_fit
from edgeinfer.text_values import size_text

NEED = MemoryNeed(
    weight_bytes=4_000_000_000, kv_bytes_per_token=100_000, kv_bytes=819_200_000, buffer_bytes=10**7, n_context=8192
)


def test_total_is_the_sum_of_the_parts():
    assert NEED.total_bytes == 4_000_000_000 + 819_200_000 + 10**7 + PROGRAM_BYTES


def test_enough_memory_fits():
    require_fit(NEED, 8_000_000_000)
    assert missing_bytes(NEED, 8_000_000_000) == 0


def test_refusal_names_the_lack_and_a_context_that_fits():
    available = 4_900_000_000
    with pytest.raises(DoesNotFit, match="would fit") as refusal:
        require_fit(NEED, available)
    context = fitting_context(NEED, available)
    assert 256 <= context < NEED.n_context
    assert f"--ctx {context}" in str(refusal.value)
    assert size_text(missing_bytes(NEED, available)) in str(refusal.value)
    smaller = MemoryNeed(NEED.weight_bytes, NEED.kv_bytes_per_token, 100_000 * context, NEED.buffer_bytes, context)
    require_fit(smaller, available)


def test_weights_too_large_ask_for_a_smaller_model():
    with pytest.raises(DoesNotFit, match="smaller quant"):
        require_fit(NEED, 2_000_000_000)
    assert fitting_context(NEED, 2_000_000_000) == 0


RECURRENT = MemoryNeed(
    weight_bytes=500_000_000,
    kv_bytes_per_token=10_000,
    kv_bytes=81_920_000 + 900_000_000,
    buffer_bytes=10**7,
    n_context=8192,
    state_bytes=900_000_000,
    bytes_per_state=100_000_000,
    n_states=8,
)


def memory_for(need: MemoryNeed) -> int:
    """The least memory in which a model fits."""
    return int(need.total_bytes / 0.95) + 2


@pytest.mark.parametrize(("n_states", "n_sequences"), [(7, 3), (6, 3), (5, 2), (4, 2), (3, 1), (2, 1)])
def test_states_too_large_name_the_sequences_that_fit(n_states: int, n_sequences: int) -> None:
    available = memory_for(RECURRENT.with_states(n_states))
    noun = "sequence" if n_sequences == 1 else "sequences"
    with pytest.raises(DoesNotFit, match=rf"states of {n_sequences} {noun} would fit \(--parallel {n_sequences}\)"):
        require_fit(RECURRENT, available)
    require_fit(RECURRENT.with_states(2 * n_sequences), available)


def test_where_a_smaller_context_would_do_both_are_named() -> None:
    available = memory_for(RECURRENT) - 20_000_000
    with pytest.raises(DoesNotFit) as refusal:
        require_fit(RECURRENT, available)
    context = fitting_context(RECURRENT, available)
    assert 256 <= context < RECURRENT.n_context
    both = f"a context of {context} tokens would fit (--ctx {context}); states of 3 sequences would fit (--parallel 3)"
    assert str(refusal.value).endswith(both)


def test_where_neither_alone_would_do_both_together_are_named() -> None:
    available = memory_for(RECURRENT.with_states(2)) - 20_000_000
    with pytest.raises(DoesNotFit, match=r"with states of 1 sequence would fit \(--ctx \d+ --parallel 1\)"):
        require_fit(RECURRENT, available)


def test_a_single_sequence_too_large_says_how_large_its_state_is() -> None:
    available = memory_for(RECURRENT.with_states(1))
    with pytest.raises(DoesNotFit, match=r"single sequence takes 100\.0 MB, and a pass needs room for 2; a smaller"):
        require_fit(RECURRENT.with_states(2), available - 81_920_000)
    with pytest.raises(
        DoesNotFit, match=r"too much; a smaller model or a smaller quant would fit$"
    ):  # states are not to blame
        require_fit(RECURRENT, 600_000_000)
