"""The fingerprint of what a device computes."""

from __future__ import annotations

import pytest

from edgeinfer.engine.probing.bits import logits_digest
from edgeinfer.jit import targets
from edgeinfer.jit.cpu import cpu_features


def test_instruction_sets_compute_the_same_and_another_device_or_format_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = logits_digest("cpu", "Q8_0")
    able = [name for name, needs in targets.NEEDS.items() if cpu_features().issuperset(needs)]
    for name in (able[0], "avx2" if "avx2" in able else "portable"):
        monkeypatch.setenv("EDGEINFER_SIMD", name)
        assert logits_digest("cpu", "Q8_0") == usual
    assert logits_digest("cpu", "IQ2_XXS") == usual  # compared by the usual format
    assert logits_digest("cpu", "Q8_0", "q8") != usual
    assert logits_digest("reference", "Q8_0") != usual
