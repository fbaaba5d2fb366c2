"""Conversations: what is left out to fit the context, and answers that continue a partial one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.conversation import Messages, fit, partial_tokens, split_partial, whole
from edgeinfer.engine.requests.texts import ProgramTokenizer
from edgeinfer.errors import BadSetting, ContextOverflow
from edgeinfer.models.text import Message, Vocabulary, vocabulary_of
from tests.unit.models.text.small_vocabularies import gguf_metadata


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


ASKED = [{"role": "system", "content": "the rain"}, {"role": "user", "content": "hello there"}]
ASCII = dict.fromkeys((0, 1, 2, *range(3 + 128, 3 + 256)), -100.0)
"""No end and no half characters: the tokens of bytes follow three special ones."""
GREEDY = {"temperature": 0.0, "logit_bias": ASCII}
N_WHOLE = 24


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="reference", n_sessions=2) as loaded:
        yield loaded


def partial(text: str) -> list[dict[str, str]]:
    return [*ASKED, {"role": "assistant", "content": text}]


def begun(llm: LLM, n_tokens: int) -> tuple[str, tuple[int, ...]]:
    """Text and tokens of an answer of so many tokens."""
    with llm.session() as session:
        stream = session.chat(ASKED, max_tokens=n_tokens, **GREEDY)
        return stream.read(), stream.tokens


def test_only_a_last_message_of_the_assistant_is_partial() -> None:
    user, answer = Message("user", "hi"), Message("assistant", "he")
    assert split_partial([user, answer]) == ([user], "he")
    assert split_partial([user, Message("assistant", "")]) == ([user], "")
    assert split_partial([user, answer, user]) == ([user, answer, user], None)
    calling = Message("assistant", None, {"tool_calls": [{"type": "function"}]})
    assert split_partial([user, calling]) == ([user, calling], None)


def test_the_rendered_text_is_the_beginning_of_an_answer_and_the_text(llm: LLM) -> None:
    with llm.session() as session:
        assert session.render(partial("the hen")) == session.render(ASKED) + "the hen"
        whole = llm.prompts.template.render(partial("the hen"), add_generation_prompt=False)
        assert whole == session.render(partial("the hen")) + "<|im_end|>\n"


@pytest.mark.parametrize("n_tokens", [1, 2, 7, 15, 23])
def test_a_stopped_answer_goes_on_as_if_it_had_not_been(llm: LLM, n_tokens: int) -> None:
    text, tokens = begun(llm, N_WHOLE)
    with llm.session() as session:
        first = session.chat(ASKED, max_tokens=n_tokens, **GREEDY)
        first.read()
        rest = session.chat(partial(first.text), max_tokens=N_WHOLE - n_tokens, **GREEDY)
        rest.read()
    assert first.tokens + rest.tokens == tokens
    assert first.text + rest.text == text
    assert rest.stats.n_cached == rest.stats.n_prompt - 1


def test_tokens_that_were_generated_are_kept_where_tokenizing_would_cut_elsewhere(llm: LLM) -> None:
    tokenizer = llm.prompts.tokenizer
    t, h, e = (tokenizer.token_id(letter) for letter in "the")
    assert tokenizer.encode("the") == [tokenizer.token_id("the")]
    head = [5, 6]
    assert partial_tokens(tokenizer, head, "the", [*head, t, h, e, t]) == [t, h, e]
    assert partial_tokens(tokenizer, head, "then", [*head, t, h, e]) == [t, h, e, *tokenizer.encode("n")]
    assert partial_tokens(tokenizer, head, "the", [5, 7, t, h, e]) == tokenizer.encode("the")
    assert partial_tokens(tokenizer, head, "th", [*head, t, h, e]) == [t, h]


def test_half_a_character_is_not_kept(llm: LLM) -> None:
    tokenizer = llm.prompts.tokenizer
    word, snow = tokenizer.encode("in")[0], tokenizer.encode("☃")
    known = [5, word, *snow]
    assert partial_tokens(tokenizer, [5], "in", known[:-1]) == [word]
    assert partial_tokens(tokenizer, [5], "in☃", known) == [word, *snow]
    assert partial_tokens(tokenizer, [5], "in\ufffd", known[:-1]) == [word, *tokenizer.encode("\ufffd")]


@given(st.text(max_size=30), st.lists(st.integers(3, 264), max_size=20), st.integers(0, 30))
def test_the_tokens_always_say_the_text(llm: LLM, text: str, said: list[int], n_same: int) -> None:
    tokenizer = llm.prompts.tokenizer
    text = tokenizer.decode(said)[:n_same] + text
    tokens = partial_tokens(tokenizer, [5], text, [5, *said])
    assert tokenizer.decode(tokens) == text


class Spacing:
    """A program whose tokenizer is that of characters, with a space put before every text."""

    def vocabulary(self) -> Vocabulary:
        tokens, types = ["<unk>", "▁", "\n", "a", "b"], [2, 1, 1, 1, 1]
        scores, model = [0.0] * 5, "llama"
        return vocabulary_of(gguf_metadata(model, tokens, types, scores=scores, add_space_prefix=True))

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [" \nab".index(character) + 1 for character in " " + text]

    def piece(self, token: int) -> bytes:
        return b"? \nab"[token : token + 1]


def test_a_program_that_puts_spaces_before_texts_puts_none_within_one() -> None:
    program = Spacing()
    tokenizer = ProgramTokenizer(program.vocabulary(), program)
    assert tokenizer.encode("ab") == [1, 3, 4]
    assert partial_tokens(tokenizer, [3], "ab") == [3, 4]
    assert partial_tokens(tokenizer, [3], "aba", [3, 1, 3]) == [1, 3, 4, 3]


def test_an_edited_answer_is_read_from_where_it_differs(llm: LLM) -> None:
    with llm.session() as session:
        first = session.chat(ASKED, max_tokens=9, **GREEDY)
        first.read()
        kept = llm.detokenize(first.tokens[:3])
        rest = session.chat(partial(kept + " inn"), max_tokens=4, **GREEDY)
        rest.read()
        assert rest.stats.n_cached >= first.stats.n_prompt + 3
    with llm.session() as fresh:
        assert fresh.chat(partial(kept + " inn"), max_tokens=4, **GREEDY).read() == rest.text


def test_a_branch_knows_what_its_origin_generated(llm: LLM) -> None:
    with llm.session() as session:
        first = session.chat(ASKED, max_tokens=8, **GREEDY)
        first.read()
        with session.branch() as twin:
            going_on = twin.chat(partial(first.text), max_tokens=4, **GREEDY)
            going_on.read()
        assert going_on.stats.n_prompt == first.stats.n_prompt + 8


def test_batches_continue_answers_too(llm: LLM) -> None:
    messages = partial("the hen")
    with llm.session() as session:
        alone = session.chat(messages, max_tokens=6, **GREEDY).read()
    assert [answer.text for answer in llm.batch([messages], max_tokens=6, **GREEDY)] == [alone]


def test_an_empty_partial_answer_is_none(llm: LLM) -> None:
    with llm.session() as session:
        alone = session.chat(ASKED, max_tokens=5, **GREEDY).read()
        assert session.chat(partial(""), max_tokens=5, **GREEDY).read() == alone


def test_old_turns_go_before_the_partial_answer_does(llm: LLM) -> None:
    old = [{"role": "user", "content": "x" * 200}, {"role": "assistant", "content": "y" * 200}]
    messages = [ASKED[0], *old, ASKED[1], {"role": "assistant", "content": "z" * 90}]
    fitted = llm.prompts.fitted(messages)
    assert fitted.n_dropped == 2
    assert llm.detokenize(fitted.prompt).endswith("<|im_start|>assistant\n" + "z" * 90)
    with pytest.raises(ContextOverflow):
        llm.prompts.fitted(partial("z" * 600))


@pytest.mark.model
@pytest.mark.parametrize("n_tokens", [1, 10, 33])
def test_the_starter_model_goes_on_as_if_it_had_not_stopped(starter_model: Path, n_tokens: int) -> None:
    asked = [{"role": "user", "content": "Write a short poem about rain, then a Python function that adds."}]
    with load(starter_model, n_context=1024, spec="off") as llm, llm.session() as session:
        with llm.session() as other:
            whole = other.chat(asked, max_tokens=60, temperature=0.0)
            whole.read()
        first = session.chat(asked, max_tokens=n_tokens, temperature=0.0)
        first.read()
        messages = [*asked, {"role": "assistant", "content": first.text}]
        rest = session.chat(messages, max_tokens=60 - n_tokens, temperature=0.0)
        rest.read()
        assert first.text + rest.text == whole.text
        assert first.tokens + rest.tokens == whole.tokens
        assert rest.stats.n_cached == rest.stats.n_prompt - 1
        rendered = llm.prompts.template.render(messages, add_generation_prompt=False)
        assert rendered.startswith(session.render(messages))
        assert session.render(messages).endswith(first.text)
