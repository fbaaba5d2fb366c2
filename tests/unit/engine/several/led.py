"""What answers that are led are compared with: the same requests, one by one."""

from __future__ import annotations

from dataclasses import replace

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.scheduler.sequence import ScheduledSequence
from edgeinfer.engine.scheduler.stream import TextStream
from edgeinfer.engine.several.several import Several


def gathered(several: Several) -> list[str]:
    """What each answer gave as pieces."""
    found: list[str] = []
    for piece in several:
        found += [""] * (len(several.answers) - len(found))
        found[piece.number] += piece.text
    return found + [""] * (len(several.answers) - len(found))


def alone(llm: LLM, answer: TextStream) -> TextStream:
    """The same request by itself, with the same seed."""
    request, stats = answer._sequence.request, answer.stats
    assert stats is not None
    request = replace(request, sampling=replace(request.sampling, seed=stats.seed))
    sequence = ScheduledSequence(llm._pool.reserve(), llm._tokenizer, request, shares_prefix=True)
    stream = TextStream(sequence, llm._driver)
    stream.read()
    return stream


def assert_each_is_itself(several: Several, found: list[str], plain: LLM) -> None:
    assert several.choice is not None
    for number, answer in enumerate(several.answers):
        assert answer.stats is not None
        assert found[number] == answer.text
        own = alone(plain, answer)
        n = len(answer.tokens)
        if answer.stats.finish_reason == "cancelled":
            assert own.tokens[:n] == answer.tokens
            assert own.text.startswith(answer.text)
        else:
            assert (own.tokens, own.text, own.logprobs) == (answer.tokens, answer.text, answer.logprobs)
            assert own.stats is not None
            assert own.stats.finish_reason == answer.stats.finish_reason
        fork = several.choice.forks[number]
        if fork is None:
            assert answer.stats.n_inherited == 0
            continue
        parent = several.answers[fork.parent]
        assert answer.tokens[: fork.n_tokens] == parent.tokens[: fork.n_tokens]
        assert fork.n_tokens <= answer.stats.n_inherited <= answer.stats.n_generated
        assert answer.stats.n_generated == n
        assert len(answer.prompt) == answer.stats.n_prompt == len(parent.prompt)
