"""Memory of a draft model: counted beside a model of which not all stays; where it is short, nothing drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.engine.kv.limits import limits_for, memory_need
from edgeinfer.engine.loading import load
from edgeinfer.engine.offload.weight_placement import WeightBudget, planned_weights
from edgeinfer.engine.speculation import second_model
from edgeinfer.engine.speculation.second_model import draft_bytes
from edgeinfer.models.load import open_model
from tests.tiny_models import write_hollow_llama

MB = 10**6
LIMITS = limits_for(256)
RAM = 300_000
"""Less than the tiny model's weights, with room for a window."""


def test_it_takes_weights_cache_and_buffers(tiny_model: Path, tmp_path: Path) -> None:
    with open_model(tiny_model, 256) as model:
        need = memory_need("cpu", model.spec, model.file.tensors, limits_for(256, 2))  # spare pages serve a session
    assert draft_bytes([tiny_model], LIMITS) == need.weight_bytes + need.kv_bytes + need.buffer_bytes
    assert draft_bytes([tmp_path], LIMITS) == 0


@pytest.mark.parametrize("ram_bytes", [500 * MB, None])
def test_it_is_counted_where_not_all_weights_stay(tmp_path: Path, home: Path, ram_bytes: int | None) -> None:
    with open_model(write_hollow_llama(tmp_path / "large.gguf"), 256) as model:
        given, available = (model.spec, model.file, "it", LIMITS), 900 * MB
        alone, _ = planned_weights(*given, WeightBudget(ram_bytes), None, available)
        beside, _ = planned_weights(*given, WeightBudget(ram_bytes, beside_bytes=100 * MB), None, available)
        assert alone is not None
        assert beside is not None
        assert 95 * MB < alone.held_bytes - beside.held_bytes < 105 * MB
        assert planned_weights(*given, WeightBudget(None, beside_bytes=100 * MB), None, 2000 * MB)[0] is None


def test_it_is_left_out_where_the_limit_has_no_room(tiny_model: Path, home: Path) -> None:
    whole_bytes = tiny_model.stat().st_size
    with load(tiny_model, device="cpu", threads=1, spec="off") as llm:
        expected = llm.complete("the rain", temperature=0, max_tokens=12).read()
    for ram_bytes in (RAM, 2 * whole_bytes):  # read from disk in part, and all in memory with nothing to spare
        with load(tiny_model, device="cpu", threads=1, spec=4, ram_bytes=ram_bytes, draft_from=[tiny_model]) as llm:
            assert (llm.telemetry.limits.stored is not None) == (ram_bytes == RAM)
            assert any(note.startswith("nothing is drafted by tiny.gguf, which takes") for note in llm.info.notices), (
                llm.info.notices
            )
            stream = llm.complete("the rain", temperature=0, max_tokens=12)
            assert stream.read() == expected
            assert stream.stats is not None
            assert stream.stats.draft is not None
            assert "draft_model" not in stream.stats.draft.sources


def test_it_is_left_out_where_memory_is_short(tiny_model: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_model, "memory_for_model", lambda: 100 * MB)
    with load(tiny_model, device="cpu", threads=1, spec=4, draft_from=[tiny_model]) as llm:
        (notice,) = llm.info.notices
        assert notice.startswith("nothing is drafted by tiny.gguf: the model needs")
        assert llm.drafts is not None
        assert llm.complete("the rain", temperature=0, max_tokens=3).read()
