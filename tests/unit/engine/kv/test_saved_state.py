"""The size a session reports for its saved state is the size of the file, whatever its model keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.kv import saved_state
from edgeinfer.engine.kv.saved_state import ReadText
from edgeinfer.engine.loading import load
from edgeinfer.graph.step import Batch
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


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen35", "lfm2"])
def test_a_saved_session_is_as_large_as_was_said(family: str, tmp_path: Path) -> None:
    with load(DATA / f"{family}-q8_0.gguf", device="cpu", spec="off") as llm, llm.session() as session:
        session.complete([5 + n for n in range(200)], max_tokens=5).read()
        session.save(tmp_path / "session")
        n_bytes = (tmp_path / "session").stat().st_size
        assert session.saved_bytes is not None
        assert session.saved_bytes <= n_bytes <= 1.1 * session.saved_bytes + HEADER_BYTES


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
