"""The size a session reports for its saved state is the size of the file, whatever its model keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.kv import saved_state
from edgeinfer.engine.kv.saved_state import ReadText, cut_whole
from edgeinfer.engine.loading import load
from edgeinfer.graph.step import Batch, causal_spans
from tests.golden.goldens import DATA

HEADER_BYTES = 2000


def test_checkpoints_of_large_states_are_saved_as_far_as_they_are_worth_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A state that is larger than all checkpoints may be: the newest is saved, from which reading goes on."""
    monkeypatch.setattr(saved_state, "SAVED_CHECKPOINT_BYTES", 1)
    tokens = [5 + n for n in range(200)]
    with load(DATA / "qwen35-q8_0.gguf", device="cpu", spec="off") as llm, llm.session() as session:
        first = session.complete(tokens, max_tokens=5, temperature=0).read()
        session.save(tmp_path / "session")
        assert session.saved_bytes is not None
        n_bytes = (tmp_path / "session").stat().st_size
        assert session.saved_bytes <= n_bytes <= 1.1 * session.saved_bytes + HEADER_BYTES
    with load(DATA / "qwen35-q8_0.gguf", device="cpu", spec="off") as llm, llm.session() as session:
        session.restore(tmp_path / "session")
        again = session.complete(tokens, max_tokens=5, temperature=0)
        assert again.read() == first
        assert again.stats.n_cached == 192  # the newest checkpoint before the last token of the prompt


@pytest.mark.parametrize("name", ["llama-q8_0", "gemma3-q8_0", "qwen35-q8_0", "lfm2-q8_0", "converted/mamba2-bf16"])
def test_a_saved_session_is_as_large_as_was_said(name: str, tmp_path: Path) -> None:
    with load(DATA / f"{name}.gguf", device="cpu", spec="off") as llm, llm.session() as session:
        session.complete([5 + n for n in range(200)], max_tokens=5).read()
        session.save(tmp_path / "session")
        n_bytes = (tmp_path / "session").stat().st_size
        assert session.saved_bytes is not None
        assert session.saved_bytes <= n_bytes <= 1.1 * session.saved_bytes + HEADER_BYTES


def test_rows_that_see_each_other_are_read_again_together() -> None:
    order = np.arange(12, dtype=np.int32)
    spans = causal_spans(order)
    spans[2:6, 1], spans[6:9, 1] = 5, 8
    batch = Batch(order, np.zeros(12, np.int32), order, order - 1, order[:0])
    text = ReadText()
    text.extend(replace(batch, spans=spans), order)
    later = order[:3] + np.int32(12)
    text.extend(Batch(later, later, later, later - 1, order[:0]), order[:3])
    assert [text.whole_before(n) for n in (2, 3, 5, 6, 7, 8, 9, 15)] == [2, 2, 2, 6, 6, 6, 9, 15]
    header, body = text.sealed()
    assert ReadText.unsealed(header, body) == (text, b"")
    found = list(text.copied().batches(4, 5, first=10))
    assert [len(each.tokens) for each in found] == [2, 4, 5, 4]
    assert [each.spans is None for each in found] == [True, False, False, True]
    assert found[1].spans is not None
    assert found[1].spans.tolist() == [[0, 15]] * 4
    assert found[2].spans is not None
    assert found[2].spans.tolist() == [[0, 18]] * 3 + [[0, 19], [0, 20]]
    text.cut(6)
    assert text.whole_before(6) == 6
    text.cut(2)
    assert [each.spans for each in text.batches(4, 1)] == [None, None]


@pytest.mark.parametrize("reached", [20, 7])
def test_a_cut_goes_back_to_what_can_be_read_again(reached: int) -> None:
    asked: list[int] = []

    def cut(n_tokens: int) -> int:
        asked.append(n_tokens)
        return min(n_tokens, reached)

    found = cut_whole(15, lambda n: n if n < 5 or n > 16 else 5 if n < 10 else 12, cut)
    assert (found, asked) == ((12, [12]) if reached == 20 else (5, [12, 5]))


def test_a_text_to_be_read_again_keeps_the_scales_it_was_read_with() -> None:
    order = np.arange(5, dtype=np.int32)
    scales = np.tile(np.array([0.5, -1.0], np.float32), (5, 1))
    text, plain = ReadText(), ReadText()
    for read, own in ((text, scales), (plain, None)):
        read.extend(Batch(order, np.zeros(5, np.int32), order, order - 1, order[:0], scales=own), order[:3])
        header, body = read.sealed()
        assert ReadText.unsealed(header, body) == (read, b"")
    found = list(text.copied().batches(4, 2))
    assert [batch.tokens.tolist() for batch in found] == [[0, 1], [2]]
    assert [batch.scales.tolist() for batch in found] == [[[0.5, -1.0]] * 2, [[0.5, -1.0]]]
    assert [batch.scales for batch in plain.batches(4, 2)] == [None, None]
