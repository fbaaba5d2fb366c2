"""Limits of models with images whose rows see each other, of which all are in one pass; memory that models may take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edgeinfer.engine.kv import limits as kv_limits
from edgeinfer.engine.kv.limits import limits_for, memory_for_model, with_budget
from edgeinfer.errors import BadSetting
from edgeinfer.models.load import open_model
from edgeinfer.models.variants import with_block_budget
from edgeinfer.scheduling.machine.topology.memory import MachineMemory
from tests.golden.goldens import DATA


@pytest.mark.parametrize(
    ("name", "n_context", "max_tokens"),
    [
        ("gemma3-f32", 8192, 256 + 64),
        ("gemma4-f32", 8192, 1120 + 64),
        ("gemma4-f32", 600, 600),
        ("gemma4-f32", 100, 256),
        ("gemma4-small-f32", 8192, 256),
        ("qwen3-f32", 8192, 256),
    ],
)
def test_a_pass_has_room_for_the_largest_image(name: str, n_context: int, max_tokens: int) -> None:
    with open_model(DATA / f"{name}.gguf", n_context, rows=True) as model:
        limits = limits_for(n_context, spec=model.spec)
    assert limits.max_tokens == max_tokens
    if limits.windows is not None:
        assert limits.windows.n_pages * 64 >= limits.windows.tokens + max_tokens
    with open_model(DATA / f"{name}.gguf", n_context) as texts:
        assert limits_for(n_context, spec=texts.spec).max_tokens == 256


def test_budgets_need_layers_in_which_rows_do_not_see_each_other() -> None:
    with open_model(DATA / "gemma3-f32.gguf", 8192, rows=True) as model:
        limits = limits_for(8192, spec=model.spec)
        with pytest.raises(BadSetting, match=r"kv=256 is not for gemma3 with images.* for texts alone"):
            with_budget(limits, model.spec, 256)
        with pytest.raises(BadSetting, match=r"prefill is not for gemma3 with images.* for texts alone"):
            with_block_budget(model.spec, 256)
    with open_model(DATA / "gemma4-f32.gguf", 8192, rows=True, block_budget=256) as model:
        assert with_budget(limits_for(8192, spec=model.spec), model.spec, 256).kv_budget == 256


@pytest.mark.parametrize(
    ("available", "total", "expected"),
    [(50, 100, 70), (90, 100, 100), (50, 0, 70)],
    ids=["what-it-has-counts", "never-more-than-all", "all-is-unknown"],
)
def test_memory_for_a_model_is_what_is_free_and_what_the_program_has(
    available: int, total: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_limits, "machine_memory", lambda: MachineMemory(total, available))
    monkeypatch.setattr(
        kv_limits.psutil, "Process", lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=20))
    )
    assert memory_for_model() == expected
