"""Log probabilities of given texts: judged by transformers' logits, by llama.cpp's, and by themselves one by one."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.scoring import Score, shares
from edgeinfer.errors import BadSetting, ContextOverflow, EdgeInferError, EngineClosed, UnsupportedModel
from tests.golden.goldens import DATA, Golden

PROMPT = "the rain in the tin, the hen in the inn " * 5 + "and the"
OPTIONS = [" hen", " inn", " rain in the tin", " then an inn", "re", " tin in the inn and the hen"]
STATES = ("lfm2-f32", "qwen35-f32", "gemma3-f32")
"""Models with convolutions, recurrent layers and windows: what was read is not kept at every position."""


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, device="cpu", n_sessions=3) as loaded:
        yield loaded


def bits(score: Score) -> list[float]:
    return [each.logprob for each in score.logprobs]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """In float64, row by row."""
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("name", ["llama-f32", "qwen3-f32", "gemma3-f32"])
def test_a_text_is_as_likely_as_transformers_finds_it(name: str) -> None:
    """Of the last row its logits are known whole; of others some columns, so that two tokens can be compared."""
    golden = Golden.read(name)
    tokens, columns = golden.tokens.tolist(), golden.columns.tolist()[1:9]
    with load(golden.model, device="reference", n_context=golden.n_context) as oracle:
        last = [oracle.logprobs([*tokens, column]).logprobs[-1].logprob for column in columns]
        rows = [[oracle.logprobs([*tokens[:n], column]).logprobs[-1].logprob for column in columns] for n in (3, 30)]
    assert last == pytest.approx(log_softmax(golden.last[None])[0][columns].tolist(), abs=2e-3)
    for n, row in zip((3, 30), rows, strict=True):
        known = golden.logits[n - 1, 1:9]
        assert np.array(row) - row[0] == pytest.approx(known - known[0], abs=2e-3)


@pytest.mark.peer
@pytest.mark.parametrize("name", ["llama-f32", "qwen3-f32", "gemma3-f32"])
def test_a_text_is_as_likely_as_llama_cpp_finds_it(name: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    golden = Golden.read(name)
    tokens = golden.tokens.tolist()
    options = {"n_ctx": golden.n_context, "n_threads": 1, "n_gpu_layers": 0, "logits_all": True, "verbose": False}
    peer = llama_cpp.Llama(str(golden.model), **options)
    try:
        peer.eval(tokens)
        rows = log_softmax(np.array(peer.scores[: len(tokens) - 1]))
    finally:
        peer.close()
    with load(golden.model, device="cpu", n_context=golden.n_context) as own:
        found = own.logprobs(tokens)
    expected = rows[np.arange(len(tokens) - 1), tokens[1:]]
    assert bits(found) == pytest.approx(expected.tolist(), abs=0.05)


def test_options_score_the_same_bits_alone_together_and_again(llm: LLM) -> None:
    together = llm.score(PROMPT, OPTIONS, top=2)
    alone = [llm.score(PROMPT, [option], top=2)[0] for option in OPTIONS]
    assert [each.logprobs for each in together] == [each.logprobs for each in alone]
    assert llm.score(PROMPT, OPTIONS[::-1], top=2) == together[::-1]
    for option, each in zip(OPTIONS, together, strict=True):
        assert llm.tokenize(PROMPT + option)[-len(each.logprobs) :] == [told.token for told in each.logprobs]
        assert all(len(told.top) == 2 and told.logprob <= told.top[0][1] for told in each.logprobs)
        whole = llm.logprobs(PROMPT + option, top=2)
        assert whole.logprobs[-len(each.logprobs) :] == each.logprobs
        assert whole.text.endswith(option)


@pytest.mark.parametrize("name", STATES)
def test_bits_are_the_same_where_states_or_windows_are_kept(name: str) -> None:
    golden = Golden.read(name)
    prompt, ends = golden.tokens[:90].tolist(), ("a", "bc", "abcabc", "c" * 9)
    with load(golden.model, device="cpu", n_context=golden.n_context) as own:
        together = own.score(prompt, ends)
        for end, each in zip(ends, together, strict=True):
            assert own.score(prompt, [end]) == [each]
            count = len(each.logprobs)
            tokens = [*prompt, *(told.token for told in each.logprobs)]
            assert own.logprobs(tokens).logprobs[-count:] == each.logprobs


def test_scores_and_answers_leave_each_other_alone(llm: LLM) -> None:
    options = {"temperature": 0.9, "seed": 3, "max_tokens": 40}
    expected, scored = llm.complete("the ", **options).read(), llm.score(PROMPT, OPTIONS)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(llm.complete("the ", **options).read())) for _ in range(3)]
    for thread in threads:
        thread.start()
    again = [llm.score(PROMPT, OPTIONS) for _ in range(3)]
    for thread in threads:
        thread.join()
    assert found == [expected] * 3
    assert again == [scored] * 3


def test_a_prompt_is_read_once_and_stays_for_the_next_options(tiny_model: Path) -> None:
    with load(tiny_model, device="reference") as fresh:
        counts = fresh._driver.scheduler.counts
        n_prompt = len(fresh.tokenize(PROMPT))
        fresh.score(PROMPT, OPTIONS)
        n_first, n_passes = counts.n_evaluated, counts.passes
        n_tails = sum(len(fresh.tokenize(PROMPT + option)) - n_prompt for option in OPTIONS)
        assert n_first <= n_prompt + n_tails + len(OPTIONS)  # one begins before the prompt's last token
        fresh.score(PROMPT, OPTIONS)
        assert counts.n_evaluated - n_first <= n_tails + len(OPTIONS)
        assert counts.passes - n_passes <= 2  # all options in one


def test_no_pass_has_more_outputs_than_fit(llm: LLM) -> None:
    text = "the hen in the inn " * 20
    assert len(llm.tokenize(text)) > llm.telemetry.limits.max_outputs
    whole, tokens = llm.logprobs(text), llm.tokenize(text)
    assert [each.token for each in whole.logprobs] == tokens[1:]
    assert bits(llm.logprobs(tokens[:10])) == bits(whole)[:9]
    assert whole.perplexity == pytest.approx(math.exp(-np.mean(bits(whole))))
    assert whole.per_byte * len(whole.text.encode()) == pytest.approx(whole.logprob)


def test_a_text_longer_than_the_context_is_told_in_parts(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu", n_context=128) as small, load(tiny_model, device="cpu") as large:
        tokens = large.tokenize("the hen in the inn " * 40)[:300]
        found = small.logprobs(tokens)
        assert [each.token for each in found.logprobs] == tokens[1:]
        assert bits(found)[:127] == bits(large.logprobs(tokens))[:127]
        assert bits(found)[127:191] == bits(large.logprobs(tokens[64:192]))[-64:]
        assert bits(found)[-(300 - 256) :] == bits(large.logprobs(tokens[300 - 128 :]))[-(300 - 256) :]


def test_white_space_at_the_end_of_a_prompt_belongs_to_the_option(llm: LLM) -> None:
    spaced, joined = llm.score("in the ", ["hen", "an"]), llm.score("in the", [" hen", " an"])
    assert [each.logprobs for each in spaced] == [each.logprobs for each in joined]
    merged = llm.score("in t", ["he"])[0]  # "the" is one token, which the prompt alone has only a part of
    assert [each.token for each in merged.logprobs] == llm.tokenize("in the")[len(llm.tokenize("in")) :]


def test_conversations_and_tokens_are_settled_before_the_option(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    before = llm.prompts.chat(messages, {}).prompt
    assert llm.score(messages, ["the hen"]) == llm.score(before, ["the hen"])
    tokens = [each.token for each in llm.score(before, ["the hen"])[0].logprobs]
    assert tokens == llm.tokenize("the hen", add_special=False)


def test_shares_are_a_softmax() -> None:
    assert shares([math.log(1), math.log(3)]) == pytest.approx([0.25, 0.75])
    assert shares([-1e5, -1e5]) == [0.5, 0.5]


def test_bad_input_is_told(llm: LLM) -> None:
    with pytest.raises(BadSetting, match="a list of options"):
        llm.score("the", "hen")
    with pytest.raises(BadSetting, match="a list of options"):
        llm.score("the", [])
    with pytest.raises(BadSetting, match="an option is empty"):
        llm.score("the", [" hen", ""])
    with pytest.raises(BadSetting, match="no token of the prompt precedes the option"):
        llm.score("", ["hen"])
    with pytest.raises(ContextOverflow, match=r"with the option ' hen hen.*…' has \d+ tokens and the context holds"):
        llm.score("the", [" inn", " hen" * 600])
    with pytest.raises(BadSetting, match="logprobs cannot be 21"):
        llm.score("the", [" hen"], top=21)
    with pytest.raises(BadSetting, match="nothing precedes"):
        llm.logprobs([5])
    with pytest.raises(BadSetting, match="scored_from cannot be 0"):
        llm.complete("the", scored_from=0)
    with pytest.raises(BadSetting, match="no token 99999"):
        llm.score([99999], ["a"])


def test_nothing_is_left_behind_by_what_was_stopped(tiny_model: Path) -> None:
    with load(tiny_model, device="cpu") as own:

        def stop(what: str, done: int, total: int) -> None:
            if what == "scoring":
                own.stop()

        with pytest.raises(EdgeInferError, match="scoring was stopped"):
            own.score(PROMPT, [" hen" * n for n in range(1, 80)], progress=stop)
        while own.telemetry.queue.n_active:
            own._driver.scheduler.step()
        expected = own.score(PROMPT, OPTIONS)
        own.close()
        with pytest.raises(EngineClosed):
            own.score(PROMPT, OPTIONS)
    with load(tiny_model, device="cpu") as other:
        assert other.score(PROMPT, OPTIONS) == expected


def test_a_model_that_only_embeds_scores_nothing() -> None:
    with (
        load(DATA / "embedding" / "bert-f32.gguf", device="reference") as embedder,
        pytest.raises(UnsupportedModel, match="writes none"),
    ):
        embedder.score("the", [" hen"])
