"""The quick look at a machine: a profile that predicts decoding, without a compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeinfer.engine.probing import quick
from edgeinfer.engine.probing.quick import quick_profile, read_rate
from edgeinfer.scheduling.cost.work import MatMulWork, ModelWork, StageShape, StageWork
from edgeinfer.scheduling.machine.topology import read_topology
from edgeinfer.scheduling.prediction import Predictor


@pytest.mark.parametrize("n_threads", [1, 3])
def test_all_threads_read_their_part(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(quick, "_read", lambda part: read.append(part.nbytes))
    monkeypatch.setattr(quick, "LONGEST_S", 1e9)
    assert read_rate(n_threads, 1 << 20) > 0
    assert read == [(1 << 20) // n_threads // 8 * 8] * n_threads * quick.MOST_PASSES


def test_decoding_is_bound_by_the_rate_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "read_rate", lambda n_threads, n_bytes: 1e9)
    profile = quick_profile(read_topology())
    product = MatMulWork("weights", "Q8_0", 1.0625, 4096, 4096)
    work = ModelWork("m", (StageWork("blk.0", StageShape((product,), None, 4096, 4), ("w",)),), 4096)
    assert Predictor(profile, work).pass_s(1) == pytest.approx(product.n_bytes / 1e9, rel=0.05)
    assert profile.short
    assert profile.assumptions
    assert profile.fingerprint == ""
    assert profile.idle_share is not None
    assert 0.0 <= profile.idle_share <= 1.0


def test_it_needs_no_compiler() -> None:
    code = (
        "import sys; from edgeinfer.app.plans.measured import kept_or_quick_profile; kept_or_quick_profile(); "
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
