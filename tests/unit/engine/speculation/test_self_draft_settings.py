"""Where a model drafts for itself: what is refused, and where it is left out without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeinfer.engine import loading
from edgeinfer.engine.kv import limits
from edgeinfer.engine.speculation import self_draft
from edgeinfer.engine.speculation.self_draft import LEAST_DEPTH, USUAL_BUDGET, SelfDraft
from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.cost.memory import RESERVE_SHARE
from tests.conftest import write_tiny_llama
from tests.golden.goldens import DATA
from tests.head_files import write_with_head
from tests.unit.engine.speculation.test_self_draft import BUDGET, opened, self_draft_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("long") / "tiny.gguf", context=4096)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"self_draft": 100}, "self_draft cannot be 100: it must be auto, off, or a number of tokens from 192 on"),
        ({"self_draft": BUDGET, "device": "null"}, "use --device cpu"),
        ({"self_draft": BUDGET, "isolate": True}, "without --isolate"),
        ({"self_draft": BUDGET, "n_context": 384}, "the context of 384 tokens is not 2 times as long"),
        ({"self_draft": BUDGET, "draft_from": ["itself"]}, "a draft model or trained head takes its place"),
        ({"self_draft": BUDGET, "approx": "kv=512"}, "--approx kv limits what all tokens attend to"),
    ],
)
def test_what_cannot_be_is_refused(model: Path, home: Path, how: dict[str, Any], message: str) -> None:
    if "draft_from" in how:
        how = {**how, "draft_from": [model]}
    with pytest.raises(BadSetting, match=message):
        opened(model, **how).close()


@pytest.mark.parametrize(
    "how",
    [
        {"self_draft": "off"},
        {"spec": "off"},
        {"spec": 6},
        {"n_context": LEAST_DEPTH * USUAL_BUDGET},
        {"isolate": True},
        {"approx": "kv=512"},
        {"ram_bytes": 300_000},
    ],
    ids=str,
)
def test_where_it_is_not_used(model: Path, home: Path, how: dict[str, Any]) -> None:
    with opened(model, **{"n_context": 4096, **how}) as llm:
        assert llm.drafts is None or llm.drafts.draft_model is None


def test_it_takes_the_place_of_a_head_in_the_file_if_it_is_asked_for(tmp_path: Path, home: Path) -> None:
    path = write_with_head(DATA / "converted" / "qwen35-bf16.gguf", tmp_path / "head.gguf", seed=4)
    with opened(path, spec=4) as llm:
        assert not isinstance(llm.drafts and llm.drafts.draft_model, SelfDraft)
    with opened(path, spec=4, self_draft=BUDGET) as llm:
        self_draft_of(llm)


def test_where_memory_is_short_it_is_left_out_unless_asked_for(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it takes keeps no model from being loaded whole."""
    sizes = []
    for wanted in ("off", "auto"):
        with opened(model, n_context=4096, self_draft=wanted) as llm:
            assert llm.info.need is not None
            sizes.append(llm.info.need.total_bytes)
    between = int(sum(sizes) / 2 / (1 - RESERVE_SHARE))
    for module in (limits, loading, self_draft):
        monkeypatch.setattr(module, "memory_for_model", lambda: between)
    with opened(model, n_context=4096, self_draft="auto") as llm:
        assert llm.drafts is not None
        assert llm.drafts.draft_model is None
        assert not llm.telemetry.limits.budgets
