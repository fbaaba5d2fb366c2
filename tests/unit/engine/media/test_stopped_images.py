"""Answers that are stopped while images are encoded: no further part is, and what was read before stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import edgeinfer
from edgeinfer import LLM
from edgeinfer.engine.media.open_encoder import OpenEncoder
from tests.golden.goldens import DATA

pytest.importorskip("PIL")

MODEL = DATA / "vision" / "idefics3.gguf"
N_TILES, N_BEFORE_STOP = 13, 3
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


def opened() -> LLM:
    return edgeinfer.load(MODEL, device="cpu", n_context=2048, spec="off")


def asked(seed: int, text: str = "What is this?") -> list[dict[str, Any]]:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 56, 3), np.uint8)
    return [{"role": "user", "content": [{"type": "image", "image": pixels}, {"type": "text", "text": text}]}]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with opened() as model:
        yield model


class Tiles:
    """Counts the tiles that are encoded, and calls `at_last` while the one of that number is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int, at_last: Callable[[], object]) -> None:
        self.n_encoded = 0
        method = OpenEncoder.encoded

        def counted(encoder: OpenEncoder, *args: Any) -> Any:
            self.n_encoded += 1
            if self.n_encoded == last:
                at_last()
            return method(encoder, *args)

        monkeypatch.setattr(OpenEncoder, "encoded", counted)


def test_a_stop_takes_effect_between_the_parts_of_an_image(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [*asked(1), {"role": "assistant", "content": "A hen."}]
    llm.chat(asked(1), **GREEDY).read()
    cached, n_free = llm.telemetry.queue, llm.telemetry.n_free_pages
    stream = llm.chat([*before, *asked(2)], **GREEDY)
    tiles = Tiles(monkeypatch, N_BEFORE_STOP, stream.stop)
    assert stream.read() == ""
    assert stream.stats is not None
    assert (stream.stats.finish_reason, tiles.n_encoded) == ("cancelled", N_BEFORE_STOP)
    assert (llm.telemetry.queue.n_active, llm.telemetry.n_free_pages) == (cached.n_active, n_free)
    again = llm.chat(asked(1), **GREEDY)
    again.read()
    assert again.stats is not None
    assert again.stats.n_cached == again.stats.n_prompt - 1
    later = llm.chat([*before, *asked(2)], **GREEDY).read()
    assert tiles.n_encoded == N_TILES  # those that were encoded before are kept
    with opened() as other:
        assert other.chat([*before, *asked(2)], **GREEDY).read() == later


def test_a_stop_of_all_ends_encoding(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = Tiles(monkeypatch, N_BEFORE_STOP, llm.stop)
    assert llm.chat(asked(1), **GREEDY).read() == ""
    assert tiles.n_encoded == N_BEFORE_STOP


def test_others_go_on(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two answers of a pass is stopped while its image is encoded."""
    words = [{"role": "user", "content": "the hen in the inn"}]
    expected = llm.chat(words, **GREEDY).read()
    streams = [llm.chat(asked(3), **GREEDY), llm.chat(words, **GREEDY)]
    tiles = Tiles(monkeypatch, N_BEFORE_STOP, streams[0].stop)
    scheduler = llm._driver.scheduler
    for stream in streams:
        scheduler.enter(stream._sequence)
    while not all(stream._sequence.is_over for stream in streams):
        scheduler.step()
    assert [stream.read() for stream in streams] == ["", expected]
    assert tiles.n_encoded == N_BEFORE_STOP


def test_a_conversation_that_is_stopped_goes_on_from_what_it_had(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with llm.session() as session:
        first = session.chat(asked(1), **GREEDY).read()
        n_cached = len(session.tokens)
        history = [*asked(1), {"role": "assistant", "content": first}, *asked(2)]
        stream = session.chat(history, **GREEDY)
        tiles = Tiles(monkeypatch, N_BEFORE_STOP, stream.stop)
        assert stream.read() == ""
        assert len(session.tokens) <= n_cached
        again = session.chat(history, **GREEDY)
        text = again.read()
        assert tiles.n_encoded == N_TILES
        assert again.stats is not None
        assert again.stats.n_cached > n_cached / 2
    with opened() as other, other.session() as fresh:
        assert fresh.chat(history, **GREEDY).read() == text
