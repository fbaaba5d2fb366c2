"""/v1/completions with echo and logprobs: what programs that score given texts need, such as lm-evaluation-harness."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from edgeinfer.app.server.text_logprobs import prompt_logprobs
from edgeinfer.engine.scheduler.token_choice import TokenLogprobs
from tests.server.conftest import Running

COMPLETIONS = "/v1/completions"
TEXTS = ["the hen in the inn", "the rain in the tin, the hen", "an inn ü€ in"]
ASKED: dict[str, Any] = {"model": "tiny", "temperature": 0, "echo": True, "logprobs": 1, "max_tokens": 0}


def ask(server: Running, **body: object) -> dict[str, Any]:
    response = server.http().post(COMPLETIONS, json={**ASKED, **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def streamed(server: Running, **body: object) -> list[dict[str, Any]]:
    """The choices of a stream, put together."""
    text = server.http().post(COMPLETIONS, json={**ASKED, **body, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices: dict[int, dict[str, Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        whole = choices.setdefault(choice["index"], {"text": "", "logprobs": None})
        whole["text"] += choice["text"]
        told = choice["logprobs"]
        if told is not None:
            known = whole["logprobs"]
            whole["logprobs"] = told if known is None else {key: known[key] + told[key] for key in told}
    return [choices[number] for number in sorted(choices)]


def test_prompts_are_told_in_openais_form(server: Running) -> None:
    found = ask(server, prompt=TEXTS, logprobs=3)
    assert [choice["text"] for choice in found["choices"]] == TEXTS
    for choice, text in zip(found["choices"], TEXTS, strict=True):
        told, tokens, scored = choice["logprobs"], server.llm.tokenize(text), server.llm.logprobs(text, top=3)
        assert set(told) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
        assert {len(values) for values in told.values()} == {len(tokens)}
        pieces = server.llm.prompts.tokenizer.pieces(tokens)
        written = zip(told["tokens"], pieces, strict=True)
        assert all(token == piece or ("\ufffd" in piece and token.startswith("bytes:\\x")) for token, piece in written)
        assert told["token_logprobs"] == [None, *(each.logprob for each in scored.logprobs)]
        assert told["top_logprobs"][0] is None
        for token, logprob, top in list(zip(*(told[key] for key in told if key != "text_offset"), strict=True))[1:]:
            assert top[token] == logprob
            assert 3 <= len(top) <= 4
            assert sum(map(math.exp, top.values())) < 1.001
        for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
            assert token.startswith("bytes:\\x") or text[offset:].startswith(token)
        assert choice["finish_reason"] == "length"
    n_tokens = sum(len(server.llm.tokenize(text)) for text in TEXTS)
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (n_tokens, 0)


def test_openais_client_reads_a_scored_text(server: Running) -> None:
    asked = {"model": "tiny", "echo": True, "logprobs": 2, "max_tokens": 0, "temperature": 0}
    found = server.client().completions.create(prompt=TEXTS, **asked)
    assert [choice.text for choice in found.choices] == TEXTS
    for choice, text in zip(found.choices, TEXTS, strict=True):
        scored = server.llm.logprobs(text)
        assert choice.logprobs.token_logprobs == [None, *(each.logprob for each in scored.logprobs)]
        assert len(choice.logprobs.top_logprobs) == len(choice.logprobs.tokens) == len(server.llm.tokenize(text))
        assert sum(choice.logprobs.token_logprobs[1:]) == pytest.approx(scored.logprob)
    assert found.usage.completion_tokens == 0


@pytest.mark.parametrize("n_tokens", [0, 1, 6])
def test_streams_and_whole_answers_tell_the_same(server: Running, n_tokens: int) -> None:
    body = {"prompt": TEXTS, "max_tokens": n_tokens}
    whole, parts = ask(server, **body)["choices"], streamed(server, **body)
    assert [(each["text"], each["logprobs"]) for each in whole] == [(each["text"], each["logprobs"]) for each in parts]
    for choice, text in zip(whole, TEXTS, strict=True):
        told = choice["logprobs"]
        assert len(told["tokens"]) == len(server.llm.tokenize(text)) + n_tokens
        assert choice["text"].startswith(text)
        assert told["text_offset"][len(told["tokens"]) - n_tokens :][:1] == ([len(text)] if n_tokens else [])


def test_prompts_may_be_tokens_and_alone_they_are_as_likely(server: Running) -> None:
    tokens = [server.llm.tokenize(text) for text in TEXTS]
    together = ask(server, prompt=tokens, max_tokens=1)["choices"]
    for one, text, found in zip(tokens, TEXTS, together, strict=True):
        (alone,) = ask(server, prompt=one, max_tokens=1)["choices"]
        (as_text,) = ask(server, prompt=text, max_tokens=1)["choices"]
        assert alone["logprobs"] == found["logprobs"] == as_text["logprobs"]
        assert len(found["logprobs"]["tokens"]) == len(one) + 1


def test_the_token_that_ends_an_answer_is_counted(server: Running) -> None:
    """Clients that ask for one token drop the last number: it must not be one of the prompt's."""
    end = next(iter(server.llm.prompts.tokenizer.vocabulary.end_of_generation))
    tokens = server.llm.tokenize(TEXTS[0])
    for streams in (False, True):
        body = {"prompt": tokens, "max_tokens": 1, "logit_bias": {str(end): 100}}
        choice = streamed(server, **body)[0] if streams else ask(server, **body)["choices"][0]
        assert len(choice["logprobs"]["tokens"]) == len(tokens) + 1
        assert choice["logprobs"]["tokens"][-1] == server.llm.prompts.tokenizer.pieces([end])[0]
        assert choice["text"] == TEXTS[0]


def test_offsets_are_those_of_the_echoed_text(server: Running) -> None:
    """A token that a tokenizer puts before texts is told, and takes no place; one that is spelled does."""
    tokenizer, begin = server.llm.prompts.tokenizer, "<|im_start|>"
    mark, *rest = tokenizer.encode(f"{begin}the hen \u20ac")
    known = [TokenLogprobs(token, -1.0, ()) for token in rest]
    hidden = prompt_logprobs([mark, *rest], known, tokenizer, "the hen \u20ac")
    spelled = prompt_logprobs([mark, *rest], known, tokenizer, f"{begin}the hen \u20ac")
    both = prompt_logprobs([mark, mark, *rest], [known[0], *known], tokenizer, f"{begin}the hen \u20ac")
    assert hidden["tokens"][0] == begin
    assert hidden["text_offset"][:3] == [0, 0, 3]
    assert spelled["text_offset"] == [0, *(len(begin) + offset for offset in hidden["text_offset"][1:])]
    assert both["text_offset"] == [0, *spelled["text_offset"]]
    assert hidden["tokens"][-3:] == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"]
    assert hidden["text_offset"][-3:] == [len("the hen ")] * 3


def test_what_cannot_be_told_is_refused(server: Running) -> None:
    cases = [
        ({"prompt": "the ", "suffix": "x"}, "leave out suffix or logprobs"),
        ({"prompt": "the ", "n_probs": 2}, "say nothing of prompts"),
        ({"prompt": "the " * 2000}, "prompt is too long"),
        ({"prompt": ["the "] * 65}, "64 are the most"),
        ({"prompt": [[]]}, "no tokens"),
        ({"prompt": "the ", "logprobs": 21}, "logprobs"),
    ]
    for body, reason in cases:
        response = server.http().post(COMPLETIONS, json={**ASKED, **body})
        assert response.status_code == 400, body
        assert reason in response.json()["error"]["message"]


def test_a_tokenizer_can_be_asked_for_in_vllms_words(server: Running) -> None:
    http, llm = server.http(), server.llm
    info = http.get("/tokenizer_info").json()
    assert llm.tokenize(info["eos_token"], add_special=False) == [llm.prompts.tokenizer.vocabulary.eos_id]
    assert info["chat_template"] == next(iter(llm.prompts.template.sources.values()))
    asked = {"prompt": TEXTS[2], "add_special_tokens": False}
    told = http.post("/tokenize", json=asked).json()
    assert told["tokens"] == llm.tokenize(TEXTS[2], add_special=False)
    assert (told["count"], told["max_model_len"]) == (len(told["tokens"]), llm.info.n_context)
    assert http.post("/detokenize", json={"tokens": told["tokens"]}).json()["prompt"] == TEXTS[2]
    assert http.post("/tokenize", json={}).status_code == 400
