"""What an executor tells of its steps and ops while it runs, and that looking changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.engine.run.observed import StageSeconds, median_stages


def test_medians_are_taken_stage_by_stage() -> None:
    passes = [[StageSeconds("blk.0", n, 2 * n, 0.0), StageSeconds("head", 4 - n, 0.0, n)] for n in (1.0, 3.0, 2.0)]
    assert median_stages(passes) == (StageSeconds("blk.0", 2.0, 4.0, 0.0), StageSeconds("head", 2.0, 0.0, 2.0))
    assert median_stages([]) == ()


def test_shares_of_the_last_step_are_all_of_it(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="cpu", spec="off") as llm:
        llm.complete("the cat", max_tokens=8, temperature=0).read()
        step = llm.telemetry.last_step
        assert step is not None
        assert sum(step.shares) == pytest.approx(1.0)
        assert len(step.shares) == len(step.workers)
        assert step.seconds > 0
        assert llm.telemetry.n_workers >= len(step.workers)


def test_other_devices_tell_nothing_of_steps(home: Path, tiny_model: Path) -> None:
    with edgeinfer.load(tiny_model, device="reference", spec="off") as llm:
        llm.complete("the cat", max_tokens=4, temperature=0).read()
        assert llm.telemetry.last_step is None
        assert llm.telemetry.time_stages() == ()


@pytest.mark.parametrize("n_cached", [0, 5, 100_000])
def test_timed_passes_give_their_pages_back(home: Path, tiny_model: Path, n_cached: int) -> None:
    with edgeinfer.load(tiny_model, device="cpu", spec="off") as llm:
        n_free = llm.telemetry.n_free_pages
        stages = llm.telemetry.time_stages(n_cached)
        assert [stage.stage for stage in stages] == ["embed", "blk.0", "blk.1", "head"]
        assert all(stage.products_s > 0 for stage in stages[1:])
        assert all(stage.attention_s > 0 for stage in stages[1:-1])
        assert llm.telemetry.n_free_pages == n_free
