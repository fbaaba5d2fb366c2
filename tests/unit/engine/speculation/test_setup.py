"""Drafting code is ready when a model is, without a compiler in this process, or compiled after a first answer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.engine import loading
from edgeinfer.engine.loading import load
from edgeinfer.engine.speculation import setup
from edgeinfer.engine.speculation.drafters import DRAFTERS
from edgeinfer.engine.speculation.drafts import loop_sources, loops_library, loops_of
from edgeinfer.engine.speculation.setup import may_draft_later
from edgeinfer.errors import EngineClosed
from edgeinfer.jit.library import KernelLibrary, cache_folder
from edgeinfer.load_options import LoadOptions
from edgeinfer.steps import no_progress
from tests.golden.goldens import Golden

LOOPS = """
import sys
from edgeinfer.engine.speculation import setup
from edgeinfer.engine.speculation.drafters import DRAFTERS
from edgeinfer.engine.speculation.drafts import loop_sources, loops_library, loops_of
from edgeinfer.engine.speculation.drafts import LEARN, LOOK
setup.loops_of = lambda drafters: [LEARN, LOOK]
library = setup.Loops().library()
assert library.n_compiled == {n_compiled}, library.n_compiled
assert library.address(LEARN) and library.address(LOOK)
assert library.n_compiled == {n_compiled}, library.n_compiled
assert "numba" not in sys.modules
"""


def test_loops_are_compiled_by_others_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for n_compiled in (2, 0):
        subprocess.run([sys.executable, "-c", LOOPS.format(n_compiled=n_compiled)], check=True)


GOLDEN = Golden.read("llama-q8_0")
GREEDY = {"temperature": 0.0, "max_tokens": 24}
TEXT = "one two three one two three one two"


@pytest.fixture
def cold(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which what drafts was never compiled, as far as the question of when goes."""
    monkeypatch.setattr(loading, "may_draft_later", lambda wanted: True)


@pytest.mark.usefixtures("cold")
def test_answers_begin_without_drafts_and_go_on_with_them() -> None:
    with load(GOLDEN.model, device="cpu", race="after", n_context=128) as llm, llm.session() as session:
        first = session.complete(TEXT, **GREEDY)
        first.read()
        assert first.stats is not None
        assert first.stats.draft is None
        assert llm.drafts is None

        told: list[str] = []
        llm.begin_drafting(lambda what, done, total: told.append(what))
        assert llm.later_drafts is None
        assert llm.drafts is not None
        for asked in (session, llm):
            again = asked.complete(TEXT, **GREEDY)
            again.read()
            assert again.tokens == first.tokens
            assert again.stats is not None
            assert again.stats.draft is not None
        llm.begin_drafting()  # nothing is left to do


def test_costs_of_passes_are_measured_after_the_first_answer_too(home: Path) -> None:
    """Where the loops are there already: with the next start drafts are there at once."""
    loops_library().prepare(loops_of(DRAFTERS.entries()), 2, no_progress)
    with load(GOLDEN.model, device="cpu", race="after", n_context=128) as llm:
        fingerprint = llm.info.fingerprint
    for note in cache_folder(*loop_sources()).glob(f"verify-cost-*-{fingerprint}-*.note"):  # of earlier tests
        note.unlink()
    with load(GOLDEN.model, device="cpu", race="after", n_context=128) as llm:
        assert llm.drafts is None
        llm.begin_drafting()
        assert llm.drafts is not None
    with load(GOLDEN.model, device="cpu", race="after", n_context=128) as llm:
        assert llm.drafts is not None
        assert llm.later_drafts is None


@pytest.mark.usefixtures("cold")
def test_who_waits_for_nothing_has_drafts_at_once() -> None:
    with load(GOLDEN.model, device="cpu", race="first", n_context=128) as llm:
        assert llm.drafts is not None
        assert llm.later_drafts is None


@pytest.mark.usefixtures("cold")
def test_a_model_that_was_closed_meanwhile_drafts_no_more() -> None:
    llm = load(GOLDEN.model, device="cpu", race="after", n_context=128)
    llm.close()
    with pytest.raises(EngineClosed):
        llm.begin_drafting()
    assert llm.drafts is None


def test_drafts_come_later_only_where_they_must_be_compiled_and_nothing_else_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not may_draft_later(LoadOptions(spec="off"))
    empty = KernelLibrary(tmp_path)
    monkeypatch.setattr(setup, "loops_library", lambda: empty)
    assert may_draft_later(LoadOptions())
    for asked in (
        LoadOptions(spec="on"),
        LoadOptions(spec=4),
        LoadOptions(spec="off"),
        LoadOptions(verify_cost={2: 1.1}),
        LoadOptions(draft_from=(tmp_path,)),
    ):
        assert not may_draft_later(asked)
    monkeypatch.setattr(KernelLibrary, "has", lambda self, wanted: True)
    assert not may_draft_later(LoadOptions())


@pytest.mark.usefixtures("cold")
def test_a_batch_that_began_without_drafts_goes_on_with_them() -> None:
    with load(GOLDEN.model, device="cpu", race="after", n_context=128) as llm:

        def prompts() -> Iterator[str]:
            yield TEXT
            llm.begin_drafting()
            yield TEXT

        first, second = llm.batch(prompts(), parallel=1, **GREEDY)
        assert first.tokens == second.tokens
        assert first.stats is not None
        assert second.stats is not None
        assert first.stats.draft is None
        assert second.stats.draft is not None
