"""What answers have left in the cache: saved to a file, restored for answers of another load, dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.scheduler.retained import LEAST_SHARED
from edgeinfer.errors import EdgeInferError, EngineClosed
from tests.conftest import write_tiny_llama

TEXT = "the rain in the tin, the hen in the inn " * 3
GREEDY = {"temperature": 0.0, "max_tokens": 12}


def answer(llm: LLM, text: str = TEXT) -> tuple[tuple[int, ...], int]:
    """Prompt and answer, and how many tokens were not read again."""
    stream = llm.complete(text, **GREEDY)
    stream.read()
    assert stream.stats is not None
    return (*stream.prompt, *stream.tokens), stream.stats.n_cached


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_another_load_goes_on_from_a_saved_prefix(tiny_model: Path, tmp_path: Path, device: str) -> None:
    path = tmp_path / "text"
    with load(tiny_model, device=device) as llm:
        tokens, n_cached = answer(llm)
        assert n_cached == 0
        assert llm.save_prefix(tokens, path) == len(tokens) - 1  # the last one is not read
        assert answer(llm)[1] == len(llm.tokenize(TEXT)) - 1  # what was saved stays
    with load(tiny_model, device=device) as llm:
        assert llm.restore_prefix(path) == (tokens[:-1], None)
        assert answer(llm) == (tokens, len(llm.tokenize(TEXT)) - 1)
        with llm.session() as session:  # a session reads the same files
            session.restore(path)
            assert session.tokens == tokens[:-1]


def test_of_a_text_only_what_is_cached_is_saved(tiny_model: Path, tmp_path: Path) -> None:
    with load(tiny_model) as llm:
        tokens, _ = answer(llm)
        other = (*tokens[:40], *reversed(tokens[40:]))
        assert llm.save_prefix(other, tmp_path / "other") == 40
        assert llm.save_prefix(tokens[::-1], tmp_path / "none") == 0
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_text_too_short_to_stay_cached_is_saved_whole(tiny_model: Path, tmp_path: Path, device: str) -> None:
    """The file holds what a session would have saved of it."""
    path, own = tmp_path / "short", tmp_path / "own"
    with load(tiny_model, device=device) as llm:
        tokens = llm.tokenize("the hen")
        assert 0 < len(tokens) < LEAST_SHARED
        assert llm.save_prefix(tokens, path) == len(tokens)
        with llm.session() as session:
            session.complete("the hen", temperature=0.0, max_tokens=1).read()
            session.save(own)
    assert path.read_bytes() == own.read_bytes()
    with load(tiny_model, device=device) as llm:
        assert llm.restore_prefix(path) == (tuple(tokens), None)
        assert llm.save_prefix((), tmp_path / "none") == 0
        assert not (tmp_path / "none").exists()


def test_a_dropped_text_is_read_again_and_others_are_not(tiny_model: Path) -> None:
    with load(tiny_model) as llm:
        (tokens, _), _ = answer(llm), answer(llm, "an inn " * 20)
        assert llm.drop_prefix(()) == 0
        assert llm.drop_prefix(tokens) == len(tokens) - 1
        assert llm.drop_prefix(tokens) == 0
        assert answer(llm)[1] == 0
        assert answer(llm, "an inn " * 20)[1] > 0


def test_others_make_room_for_a_restored_text(tiny_model: Path, tmp_path: Path) -> None:
    path, long = tmp_path / "text", "the hen in " * 80
    with load(tiny_model) as llm:
        tokens, _ = answer(llm, long)
        llm.save_prefix(tokens, path)
    with load(tiny_model, n_sessions=1, n_context=512) as llm:
        for n in range(4):
            answer(llm, f"{n} " + "an inn there " * 40)
        n_kept = llm.telemetry.queue.n_kept
        assert llm.restore_prefix(path) == (tokens[:-1], None)
        assert llm.telemetry.queue.n_kept <= n_kept
        assert answer(llm, long)[1] == len(llm.tokenize(long)) - 1


def test_what_is_no_prefix_of_this_model_changes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    path, other = tmp_path / "text", write_tiny_llama(tmp_path / "other.gguf", seed=7)
    with load(tiny_model) as llm:
        tokens, _ = answer(llm)
        llm.save_prefix(tokens, path)
        damaged = path.read_bytes()
        path.with_name("damaged").write_bytes(damaged[:100] + b"x" + damaged[101:])
        n_free, n_kept = llm.telemetry.n_free_pages, llm.telemetry.queue.n_kept
        for name in ("damaged", "missing"):
            with pytest.raises(EdgeInferError):
                llm.restore_prefix(path.with_name(name))
        assert (llm.telemetry.n_free_pages, llm.telemetry.queue.n_kept) == (n_free, n_kept)
        with pytest.raises(EdgeInferError, match="cannot be written"):
            llm.save_prefix(tokens, tmp_path / "no folder" / "text")
        assert llm.telemetry.n_free_pages == n_free
    with pytest.raises(EngineClosed):
        llm.save_prefix(tokens, path)
    with load(other) as llm:
        n_free = llm.telemetry.n_free_pages
        with pytest.raises(EdgeInferError, match="another model"):
            llm.restore_prefix(path)
        assert llm.telemetry.n_free_pages == n_free
