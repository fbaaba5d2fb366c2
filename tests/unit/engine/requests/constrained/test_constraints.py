"""Answers that follow a schema or a grammar: always valid, the same with and without drafts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import jsonschema
import numpy as np
import pytest

import edgeinfer
from edgeinfer.engine.llm import LLM
from edgeinfer.engine.loading import load
from edgeinfer.engine.requests.constrained.constraints import Grammar, allowed_nodes
from edgeinfer.engine.requests.constrained.guidance import MOST_TEXT, Guidance, grammar_of
from edgeinfer.engine.requests.constrained.guided_json import MOST_DIGITS
from edgeinfer.engine.requests.drafting import Draft
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer

SCHEMAS = [
    {"type": "boolean"},
    {"enum": ["red", "green", 3]},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 2, "maxItems": 4},
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "tags": {"type": "array", "items": {"const": "x"}, "maxItems": 2},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    },
    {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-c]{2,3}$"}]},
]
MESSAGES = [{"role": "user", "content": "the rain in the tin"}]
SAMPLED = {"temperature": 1.3, "seed": 3, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module", params=["off", "on", 6])
def llm(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, spec=request.param, n_sessions=3) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> Iterator[LLM]:
    with load(tiny_model, spec="off") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, SAMPLED, {**SAMPLED, "repeat_penalty": 1.2}])
@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_answers_are_valid_and_do_not_depend_on_drafts(
    llm: LLM, plain: LLM, schema: dict[str, object], options: dict[str, float]
) -> None:
    """The model's weights are random: it never says anything valid by itself."""
    for _ in range(2):  # the second time drafts know the answer
        stream = llm.chat(MESSAGES, schema=schema, max_tokens=400, **options)
        assert "".join(stream) == stream.text
        assert stream.stats.finish_reason == "stop", stream.text
        jsonschema.validate(json.loads(stream.text), schema)
        other = plain.chat(MESSAGES, schema=schema, max_tokens=400, **options)
        other.read()
        assert (stream.tokens, stream.text) == (other.tokens, other.text)


def test_forced_tokens_are_not_asked_for(plain: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"a_long_name_of_a_property": {"type": "boolean"}},
        "required": ["a_long_name_of_a_property"],
        "additionalProperties": False,
    }
    stream = plain.chat(MESSAGES, schema=schema, temperature=0)
    stream.read()
    assert len(stream.tokens) > 25
    assert stream.stats.steps < len(stream.tokens) / 2


def test_white_space_between_the_parts_of_json_ends(plain: LLM) -> None:
    """Small models go on with it for ever; here every other token is made unlikely."""
    blanks = {token: 50.0 for token in range(plain.prompts.tokenizer.n_tokens) if plain.detokenize([token]).isspace()}
    assert blanks
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    stream = plain.chat(MESSAGES, schema=schema, max_tokens=400, logit_bias=blanks, temperature=0)
    assert len(json.loads(stream.read())) == 2
    assert max(len(run) for run in re.findall(r"\s*", stream.text)) in range(1, 34)


@pytest.mark.parametrize(
    ("schema", "most"),
    [
        ({"type": "number"}, MOST_DIGITS),
        ({"type": "integer", "minimum": 5}, MOST_DIGITS),
        ({"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}, MOST_DIGITS),
        (
            {"type": "object", "properties": {"id": {"type": "string", "pattern": "^[0-9]{30}$"}}, "required": ["id"]},
            30,
        ),
        ({"const": 10**24}, 25),
    ],
)
def test_numbers_end(llm: LLM, plain: LLM, schema: dict[str, object], most: int) -> None:
    """Digits are made likely, as small models find them; what is written into strings, or wanted, stays as it is."""
    digits = {token: 50.0 for token in range(plain.prompts.tokenizer.n_tokens) if plain.detokenize([token]).isdigit()}
    assert digits
    for sampled in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 2}):
        options = {"max_tokens": 400, "logit_bias": digits, **sampled}
        schema = {**schema, "additionalProperties": False} if "properties" in schema else schema
        stream = llm.chat(MESSAGES, schema=schema, **options)  # type: ignore[arg-type]
        jsonschema.validate(json.loads(stream.read()), schema)
        assert stream.stats.finish_reason == "stop"
        runs = re.findall("[0-9]+", stream.text)
        assert max(len(run) for run in runs) == most
        assert stream.text == plain.chat(MESSAGES, schema=schema, **options).read()  # type: ignore[arg-type]


def test_sampling_under_a_mask_is_sampling_of_what_is_left(plain: LLM) -> None:
    """Against the distribution that the model's own probabilities give, made as small as the mask."""
    letters = "abcd"
    told = plain.complete("the ", max_tokens=1, temperature=0, logit_bias={}, logprobs=20)
    told.read()
    n, counts = 1500, dict.fromkeys(letters, 0)
    for seed in range(n):
        text = plain.complete("the ", regex=f"[{letters}]", temperature=1, top_k=0, top_p=1, min_p=0, seed=seed).read()
        counts[text] += 1
    cached = plain._pool.open()
    with cached.lock:
        prompt = plain.tokenize("the ")
        logits = cached.evaluate(cached.chain(prompt, wants_logits=True))[0].astype(np.float64)
    cached.close()
    weights = np.array([np.exp(logits[plain.prompts.tokenizer.token_id(letter)]) for letter in letters])
    expected = n * weights / weights.sum()
    observed = np.array([counts[letter] for letter in letters])
    assert ((observed - expected) ** 2 / expected).sum() < 16.3  # chi-square, 3 degrees of freedom, 0.1 %


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"regex": "[0-9]{3}-[0-9]{2}"}, r"[0-9]{3}-[0-9]{2}"),
        ({"regex": " "}, " "),
        ({"grammar": 'start: "yes" | "no"'}, "yes|no"),
        ({"grammar": 'root ::= "a" ("b" | "c") [0-9]'}, "a[bc][0-9]"),
    ],
)
def test_other_grammars(llm: LLM, options: dict[str, str], form: str) -> None:
    for sampled in ({"temperature": 0.0}, SAMPLED):
        assert re.fullmatch(form, llm.complete("the ", **options, **sampled).read())


def test_true_asks_for_any_object(llm: LLM) -> None:
    stream = llm.chat(MESSAGES, schema=True, max_tokens=300, **SAMPLED)
    stream.read()
    if stream.stats.finish_reason == "stop":
        assert isinstance(json.loads(stream.text), dict)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"schema": {"type": "strin"}}, "Invalid type"),
        ({"schema": '{"type":'}, "schema"),
        ({"schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "Unsatisfiable"),
        ({"schema": {"a": object()}}, "no JSON"),
        ({"schema": {}, "regex": "a"}, "one of schema and regex"),
        ({"regex": "("}, "regular expression"),
        ({"regex": ""}, "empty"),
        ({"regex": 3}, "regex cannot be 3"),
        ({"grammar": " "}, "empty"),
        ({"grammar": "start: nothing_like_it"}, "grammar"),
        ({"grammar": 'root ::= "a'}, "grammar"),
        ({"grammar": "start: " + "x" * MOST_TEXT}, "characters"),
    ],
)
def test_what_cannot_be_followed_is_refused_at_once(plain: LLM, options: dict[str, object], reason: str) -> None:
    with pytest.raises(BadSetting, match=reason):
        plain.chat(MESSAGES, **options)


def test_an_answer_that_is_cut_short_says_so(plain: LLM) -> None:
    stream = plain.chat(MESSAGES, schema={"type": "string", "minLength": 60}, max_tokens=10, temperature=0)
    stream.read()
    assert stream.stats.finish_reason == "length"
    assert len(stream.tokens) == 10


@pytest.mark.parametrize("n", [400, 600, 5000])
def test_forced_text_that_outgrows_the_context_is_cut(llm: LLM, plain: LLM, n: int) -> None:
    stream, other = (each.chat(MESSAGES, schema={"const": "x" * n}, temperature=0) for each in (llm, plain))
    assert stream.read() == other.read()
    assert stream.tokens == other.tokens
    assert stream.stats.finish_reason == ("stop" if n == 400 else "length")
    assert stream.stats.truncated == (n > 400)


def test_forced_tokens_count_no_further_than_the_answer_goes(plain: LLM) -> None:
    stream = plain.chat(MESSAGES, schema={"const": "x" * 100}, max_tokens=7)
    stream.read()
    assert (stream.stats.finish_reason, len(stream.tokens)) == ("length", 7)
    assert stream.stats.accepted_per_step <= 7


def test_what_is_told_of_forced_tokens_does_not_depend_on_drafts(llm: LLM, plain: LLM) -> None:
    properties = {"a_long_name": {"type": "boolean"}, "another_name": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    for _ in range(2):  # the second time drafts know the answer
        stream, other = (each.chat(MESSAGES, schema=schema, temperature=0, logprobs=1) for each in (llm, plain))
        assert stream.read() == other.read()
        assert stream.logprobs == other.logprobs
    assert stream.logprobs[0].logprob == 0  # nothing but a brace can begin it


class Letters:
    """A constraint that allows these tokens, one after the other."""

    def __init__(self, sets: Sequence[set[int]]) -> None:
        self.sets = sets

    def n_allowed(self, tokens: Sequence[int]) -> int:
        n = 0
        while n < len(tokens) and n < len(self.sets) and tokens[n] in self.sets[n]:
            n += 1
        return n


def test_drafted_tokens_that_are_forbidden_are_left_out_with_all_that_hang_on_them() -> None:
    tokens = np.array([9, 1, 2, 3, 4, 5, 6], np.int32)
    parents = np.array([-1, 0, 0, 1, 2, 3, 3], np.int32)
    assert allowed_nodes(Draft(tokens, parents), Letters([{1}, {3, 4}, {6}])) == [0, 1, 3, 6]  # type: ignore[arg-type]
    assert allowed_nodes(Draft(tokens, parents), Letters([])) == [0]  # type: ignore[arg-type]


def test_a_constraint_allows_what_its_mask_shows(tokenizer: Tokenizer) -> None:
    constraint = Guidance(tokenizer).constraint(Grammar("regex", "[ab]+c"))
    text = tokenizer.encode("abac", add_special=False)
    for token in text:
        mask = constraint.mask()
        assert mask.shape == (tokenizer.n_tokens,)
        assert [bool(mask[each]) for each in range(200)] == [constraint.allows(each) for each in range(200)]
        constraint.accept(token)
    assert all(constraint.allows(end) for end in tokenizer.vocabulary.end_of_generation)
    with pytest.raises(EdgeInferError, match="could not be followed"):
        constraint.accept(text[0])


def test_nothing_is_asked_for_by_default() -> None:
    assert grammar_of(None, None, None) is None
    assert edgeinfer.__version__
