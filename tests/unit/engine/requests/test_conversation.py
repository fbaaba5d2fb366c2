"""Fitting conversations: what is left out, what stays, and that it is said."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.requests.conversation import Messages, fit, whole
from edgeinfer.errors import BadSetting, ContextOverflow
from edgeinfer.models.text import Message


def render(messages: Sequence[Message]) -> list[int]:
    """One token per character of content."""
    return [ord(character) for message in messages for character in message.text]


def message(role: str, letter: str, n: int) -> Message:
    return Message(role, letter * n)


def test_a_conversation_that_fits_is_whole() -> None:
    fitted = fit([message("system", "s", 5), message("user", "u", 70)], render, 100)
    assert (len(fitted.prompt), fitted.n_dropped, fitted.notices) == (75, 0, ())


def test_the_oldest_turns_go_and_the_system_prompt_stays() -> None:
    messages = [message("system", "s", 10)]
    for letter in "abcd":
        messages += [message("user", letter, 15), message("assistant", letter.upper(), 10)]
    messages.append(message("user", "e", 15))
    fitted = fit(messages, render, 100)
    assert "".join(map(chr, fitted.prompt)) == "s" * 10 + "c" * 15 + "C" * 10 + "d" * 15 + "D" * 10 + "e" * 15
    assert fitted.n_dropped == 4
    assert fitted.notices == ("the context of 100 tokens is full: the 4 oldest messages were left out",)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.booleans(), st.integers(1, 60))
def test_no_more_turns_go_than_must(lengths: list[int], system: bool, max_tokens: int) -> None:
    messages = [message("system", "s", 7)] if system else []
    messages += [message(("user", "assistant")[i % 2], "x", n) for i, n in enumerate(lengths)]
    room = 100 - min(25, max_tokens)
    fixed = 7 if system else 0
    starts = range(0, len(lengths), 2)
    tails = [sum(lengths[start:]) + fixed for start in starts]
    wanted = next((tail for tail in tails if tail <= room), tails[-1])
    if wanted > 100:
        with pytest.raises(ContextOverflow):
            fit(messages, render, 100, max_tokens)
    else:
        fitted = fit(messages, render, 100, max_tokens)
        assert len(fitted.prompt) == wanted
        assert fitted.n_dropped == list(starts)[tails.index(wanted)]


def test_a_last_message_without_room_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ContextOverflow, match="has 130 tokens and the context holds 100"):
        fit([message("system", "s", 10), message("user", "a", 5), message("user", "b", 120)], render, 100)


@pytest.mark.parametrize(
    "messages", [[], "hi", {"role": "user"}, ["hi"], [{"content": "x"}], [{"role": "user", "content": 3}]]
)
def test_messages_that_are_none_are_refused(messages: Messages) -> None:
    with pytest.raises(BadSetting, match="message"):
        fit(messages, render, 100)


def test_a_conversation_that_must_stay_whole_may_fill_the_context() -> None:
    messages = [message("user", "u", 60), message("assistant", "a", 30), message("user", "u", 10)]
    assert len(whole(messages, render, 100).prompt) == 100
    with pytest.raises(ContextOverflow, match="the conversation has 100 tokens and the context holds 99"):
        whole(messages, render, 99)
    with pytest.raises(BadSetting):
        whole([], render, 100)
