"""How full the context is: the same numbers that sending would give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.app.context_use import ContextUse, context_use
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load

SYSTEM = {"role": "system", "content": "the rain"}


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="reference") as loaded:
        yield loaded


def test_it_counts_what_would_be_sent(llm: LLM) -> None:
    use = context_use(llm, [SYSTEM], "hello there")
    sent = [SYSTEM, {"role": "user", "content": "hello there"}]
    stream = llm.chat(sent, max_tokens=1)
    stream.read()
    assert use == ContextUse(stream.stats.n_prompt, 512, 512 - stream.stats.n_prompt)
    assert use.share == stream.stats.n_prompt / 512
    assert context_use(llm, sent) == use
    assert context_use(llm, sent, max_tokens=9).n_answer_room == 9


def test_nothing_takes_nothing(llm: LLM) -> None:
    assert context_use(llm, []) == ContextUse(0, 512, 512)


def test_it_tells_what_would_be_left_out(llm: LLM) -> None:
    old = [{"role": "user", "content": "x" * 150}, {"role": "assistant", "content": "y" * 150}]
    talk = [SYSTEM, *old, {"role": "user", "content": "z" * 60}, {"role": "assistant", "content": "w" * 60}]
    use = context_use(llm, talk, "u" * 80)
    stream = llm.chat([*talk, {"role": "user", "content": "u" * 80}], max_tokens=1000)
    assert use.n_dropped_messages == 2
    assert use.n_dropped_tokens > 300
    assert use.fits
    stream.stop()
    stream.read()
    assert use.n_prompt == stream.stats.n_prompt
    assert stream.stats.notices[0].endswith("the 2 oldest messages were left out")


def test_a_message_longer_than_the_context_does_not_fit(llm: LLM) -> None:
    use = context_use(llm, [SYSTEM], "u" * 600)
    assert (use.fits, use.n_answer_room, use.n_dropped_messages) == (False, 0, 0)
    assert use.n_prompt > 600
    assert use.share > 1
