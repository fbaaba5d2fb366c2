"""Where memory is short, passes have fewer tokens and fewer rows of logits, and answers stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.engine.kv.limits import limits_for, memory_need
from edgeinfer.engine.loading import load
from edgeinfer.engine.offload import weight_placement
from edgeinfer.engine.offload.weight_placement import WeightBudget, fit_weights, smaller_passes
from edgeinfer.models.load import open_model
from edgeinfer.scheduling.cost.memory import RESERVE_SHARE


@pytest.fixture(autouse=True)
def _own_home(home: Path) -> None:
    """No test sees the user's models or settings."""


def test_rows_of_logits_shrink_with_passes_but_serve_all_sequences() -> None:
    limits = limits_for(256)
    assert (limits.max_tokens, limits.max_outputs) == (256, 64)
    sizes = [
        smaller_passes(limits, n, sequences).max_outputs for n, sequences in ((128, 1), (64, 1), (64, 24), (64, 99))
    ]
    assert sizes == [32, 16, 24, 64]


def test_what_drafts_take_is_what_rows_of_logits_take(tiny_model: Path) -> None:
    with open_model(tiny_model, 256) as model:
        need, less = (
            memory_need("cpu", model.spec, model.file.tensors, limits)
            for limits in (limits_for(256), smaller_passes(limits_for(256), 64))
        )
        assert need.draft_bytes == 63 * 4 * model.spec.output_width
        assert less.draft_bytes == 15 * 4 * model.spec.output_width
        assert need.buffer_bytes - less.buffer_bytes >= need.draft_bytes - less.draft_bytes
        assert f"(drafts {need.draft_bytes / 1e3:.1f} kB)" in need.parts_text


@pytest.mark.parametrize("parallel", [1, 20])
def test_drafts_share_fewer_rows_where_memory_is_short(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, parallel: int
) -> None:
    texts = ["the rain in the inn", "a", "the hen"]
    with load(tiny_model, device="cpu", threads=1, n_context=128, spec="off") as llm:
        expected = [answer.tokens for answer in llm.batch(texts, parallel=1, max_tokens=30, temperature=0)]
    with open_model(tiny_model, 128) as model:
        limits = smaller_passes(limits_for(128, spec=model.spec), 64, parallel)
        need = memory_need("cpu", model.spec, model.file.tensors, limits)
        available = int((need.total_bytes + 4096) / (1 - RESERVE_SHARE))
        fit = fit_weights(model.spec, model.file, limits_for(128), WeightBudget(n_sequences=parallel), available)
        assert (fit.budget_bytes, fit.limits.max_tokens, fit.limits.max_outputs) == (None, 64, max(16, parallel))
    monkeypatch.setattr(weight_placement, "memory_for_model", lambda: available)
    options = {"device": "cpu", "threads": 1, "n_context": 128, "parallel": parallel, "verify_cost": {2: 1.0, 64: 1.0}}
    with load(tiny_model, **options) as llm:  # type: ignore[arg-type]
        assert llm.telemetry.limits.max_outputs == max(16, parallel)
        stream = llm.batch(texts, parallel=3, max_tokens=30, temperature=0)
        assert [tokens for _, tokens in sorted((each.number, each.tokens) for each in stream)] == expected
        assert stream.counts.n_accepted > 0
