"""Every drafter of the registry: its file is well formed, alone it changes no answer, and its claims are its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.loading import load
from edgeinfer.engine.speculation import drafts as drafts_module
from edgeinfer.engine.speculation.drafters import DRAFTERS
from edgeinfer.engine.speculation.records import BEST, DRAFT_SOURCES, FIRST_BUCKET, PROPOSED
from tests.unit.engine.speculation.drafting import N_VOCAB, follow, model_drafts, repeating

KEYS = DRAFTERS.keys()
MESSAGES = [{"role": "user", "content": "the rain in the inn and the rain in the inn and the rain"}]


@pytest.fixture(params=KEYS)
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The key of a drafter that is asked alone, but for the two whose tables others fill."""
    key: str = request.param
    used = {name: DRAFTERS.get(name) for name in sorted({key, "suffix", "recycling"})}
    monkeypatch.setattr(drafts_module.DRAFTERS, "entries", lambda: used)
    return key


def test_all_drafters_are_asked() -> None:
    assert set(model_drafts().drafters) == set(KEYS)
    assert sum(len(DRAFTERS.get(key).draft_sources) for key in KEYS) <= DRAFT_SOURCES


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.95, "seed": 3}])
def test_no_drafter_changes_an_answer(alone: str, tiny_model: Path, home: Path, options: dict[str, float]) -> None:
    with load(tiny_model, threads=1, spec="off") as llm:
        plain = [llm.chat(MESSAGES, max_tokens=n, **options).read() for n in (60, 5)]  # type: ignore[arg-type]
    for spec in (3, 16, 64):
        with load(tiny_model, threads=1, spec=spec) as llm:
            assert [llm.chat(MESSAGES, max_tokens=n, **options).read() for n in (60, 5)] == plain  # type: ignore[arg-type]


def test_buckets_are_within_what_a_draft_source_can_bucket(alone: str) -> None:
    drafts = model_drafts(fixed=32)
    session = drafts.session()
    text = repeating(300)
    follow(session, text, 150, most=32)
    session.begin(text)
    session.draft(text, 32, 16)
    n_candidates = int(session._fields["n_candidates"])
    candidates = session._arrays["candidates"][:n_candidates]
    for place, (draft_source, start) in enumerate(
        zip(drafts.draft_sources, drafts.acceptance[False].starts, strict=True)
    ):
        buckets = candidates["buckets"][:, place] - start
        assert ((buckets >= 0) & (buckets < FIRST_BUCKET + draft_source.n_buckets)).all()
    assert ((candidates["token"] >= 0) & (candidates["token"] < N_VOCAB)).all()


def test_a_drafter_proposes_something_of_a_text_that_repeats_itself(alone: str) -> None:
    drafts = model_drafts(fixed=16)
    drafts.prime(0, np.arange(N_VOCAB, dtype=np.int32)[:, None] + np.zeros((1, BEST), np.int32))
    session = drafts.session()
    follow(session, repeating(300), 150)
    report = session.report()
    own = [draft_source.name for draft_source in DRAFTERS.get(alone).draft_sources]
    assert max(report.sources[name].proposed for name in own) > 0


def test_tables_are_of_bounded_size(alone: str) -> None:
    tables = model_drafts().tables[alone]
    assert tables.nbytes < 8 << 20
    assert all(isinstance(array, np.ndarray) for array in tables.arrays().values())
    assert PROPOSED <= 32
