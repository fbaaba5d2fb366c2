"""How full the context is: the same numbers that sending would give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeinfer.app.chat.context import ContextUse, context_use, why_too_long
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from tests.conftest import write_tiny_llama

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


def test_why_a_message_is_too_long_has_the_numbers_and_what_would_work(llm: LLM) -> None:
    assert why_too_long(llm, [SYSTEM], "u" * 300) is None
    n_around = llm.prompts.n_tokens([SYSTEM, {"role": "user", "content": ""}])
    reason = why_too_long(llm, [SYSTEM], "u" * 600, ["a.txt"])
    assert reason == (
        f"the message with a.txt has 600 tokens, and there is room for {512 - n_around}. "
        "Attach less: this model was made for 512 tokens at most"
    )
    assert "the message with 4 files has" in str(why_too_long(llm, [], "u" * 600, ["a"] * 4))
    assert str(why_too_long(llm, [], "u" * 600)).startswith("the message has 600 tokens")


def test_a_system_prompt_without_room_is_named(llm: LLM) -> None:
    reason = str(why_too_long(llm, [{"role": "system", "content": "s" * 600}], "u"))
    assert reason.startswith("the system prompt alone has 6")
    assert reason.endswith("tokens and the context holds 512. /system changes it")


def test_a_larger_context_is_named_where_the_model_has_one(tiny_model: Path, tmp_path: Path) -> None:
    wide = write_tiny_llama(tmp_path / "wide.gguf", context=8192)
    with load(wide, device="reference", n_context=512) as narrow:
        assert str(why_too_long(narrow, [], "u" * 600)).endswith(
            "Send less, or have a larger context: /set ctx 1024, then open the model again with /model"
        )
