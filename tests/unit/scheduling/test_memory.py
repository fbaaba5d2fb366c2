"""The fit check: numbers in, verdict out."""

import pytest

from edgeinfer.errors import DoesNotFit
from edgeinfer.scheduling.memory import PROGRAM_BYTES, MemoryNeed, fitting_context, missing_bytes, require_fit
from edgeinfer.size_text import size_text

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
