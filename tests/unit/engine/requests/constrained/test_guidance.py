"""Grammars and vocabularies: refused at once or followed to the end, and GBNF means what it does in llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgeinfer.engine.requests.constrained.constraints import MOST_FORCED, Constraint, Grammar
from edgeinfer.engine.requests.constrained.guidance import MOST_ITEMS, Guidance, spelled
from edgeinfer.engine.requests.constrained.guided_json import MOST_DIGITS
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer
from tests.conftest import SPECIAL, byte_characters
from tests.unit.models.text.small_vocabularies import gguf_metadata

NUMBER = "12345678901234567890123456789"


def byte_level(words: Sequence[str] = (), *, without: str = "", pre: str = "default") -> Tokenizer:
    """A byte-level tokenizer with these words, each a character longer than another, lacking some bytes."""
    tokens = [*SPECIAL, *(character for character in byte_characters() if character not in without), *words]
    types = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))
    merges = [f"{word[:-1]} {word[-1]}" for word in words]
    return Tokenizer.from_metadata(
        gguf_metadata("gpt2", tokens, types, pre=pre, merges=merges, bos_token_id=0, eos_token_id=2)
    )


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level()


def constraint(tokenizer: Tokenizer, schema: object) -> Constraint:
    return Guidance(tokenizer).constraint(Grammar("json", json.dumps(schema)))


def follow(constraint: Constraint, tokens: Sequence[int]) -> None:
    for token in tokens:
        constraint.accept(token)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json", '{"$ref": "#"}'),
        Grammar("grammar", 'root ::= root "a"'),
        Grammar("json", json.dumps({"type": "object", "properties": {f"k{n}": {} for n in range(5000)}})),
    ],
)
def test_what_shows_in_the_first_step_is_refused_before_it(tokenizer: Tokenizer, grammar: Grammar) -> None:
    with pytest.raises(BadSetting, match="cannot be followed"):
        Guidance(tokenizer).constraint(grammar)


def test_long_numbers_end_where_they_may(tokenizer: Tokenizer) -> None:
    """A multiple of 7 of more than 20 digits may come about; then it must not go on with digits."""
    guided = constraint(tokenizer, {"type": "integer", "multipleOf": 7})
    follow(guided, tokenizer.encode(str(7 * 10**MOST_DIGITS), add_special=False))
    digits = [tokenizer.encode(str(digit), add_special=False)[0] for digit in range(10)]
    assert not guided.mask()[digits].any()
    assert not any(guided.allows(digit) for digit in digits)
    assert guided.allows(2)
    guided = constraint(tokenizer, {"type": "integer", "multipleOf": 7})
    follow(guided, tokenizer.encode("1" * (MOST_DIGITS + 5), add_special=False))
    assert guided.mask()[digits].all()


@pytest.mark.parametrize("begun", ["1e", "-7.25E+", "[3e-", '{"e1": 1e'])
def test_exponents_end_before_numbers_are_infinite(tokenizer: Tokenizer, begun: str) -> None:
    forms = {"[": {"type": "array", "items": {"type": "number"}}, "{": {"properties": {"e1": {"type": "number"}}}}
    guided = constraint(tokenizer, forms.get(begun[0], {"type": "number"}))
    digits = tokenizer.encode("123", add_special=False)
    assert guided.n_allowed(tokenizer.encode(f"{begun}123", add_special=False)) == len(begun) + 2
    follow(guided, tokenizer.encode(f"{begun}12", add_special=False))
    assert not guided.mask()[digits].any()
    assert not any(guided.allows(digit) for digit in digits)


def test_an_exponent_in_a_text_is_written(tokenizer: Tokenizer) -> None:
    guided, tokens = constraint(tokenizer, {"const": "1e999"}), tokenizer.encode('"1e999"', add_special=False)
    assert guided.n_allowed(tokens) == len(tokens)


def test_what_is_drafted_of_a_number_is_as_short_as_what_is_written(tokenizer: Tokenizer) -> None:
    written, tokens = constraint(tokenizer, {"type": "number"}), tokenizer.encode("-" + "1" * 30, add_special=False)
    n = written.n_allowed(tokens)
    assert n == 1 + MOST_DIGITS
    follow(written, tokens[:5])
    assert written.n_allowed(tokens[5:]) == n - 5
    follow(written, tokens[5:n])
    assert not written.allows(tokens[n])
    text = tokenizer.encode('"' + "1" * 30 + '\\"2"', add_special=False)
    assert constraint(tokenizer, {"type": "string"}).n_allowed(text) == len(text)


def test_forced_text_is_cut_into_the_same_tokens_at_once_and_one_by_one() -> None:
    """Pre-tokenizers cut numbers in threes from where they begin, so what is asked for later is cut otherwise."""
    tokenizer = byte_level(["12", "45", "78", "123", "789", "01", "012", "90", "901", "23", "234"], pre="llama-bpe")
    ways = []
    for most in (100, 1):
        guided, tokens = constraint(tokenizer, {"const": NUMBER}), []
        while forced := guided.forced()[:most]:
            follow(guided, forced)
            tokens += forced
        ways.append([tokenizer.piece(token) for token in tokens])
    assert ways[0] == ways[1]
    assert b"".join(ways[0]) == f'"{NUMBER}"'.encode()


def test_control_tokens_can_be_asked_for_without_a_token_of_byte_ff() -> None:
    """llguidance writes that byte before the number of a control token."""
    lacking = byte_level(without=byte_characters()[255])
    found = Guidance(lacking).constraint(Grammar("grammar", '%llguidance {}\nstart: <[1]> "a"\n'))
    assert found.forced()[0] == 1
    follow(found, [1, *lacking.encode("a", add_special=False)])
    assert found.allows(2)


def test_what_a_vocabulary_cannot_write_is_refused() -> None:
    """No token has the byte F1, with which characters from U+40000 begin."""
    lacking = byte_level(without="\u00f1")
    with pytest.raises(BadSetting, match="schema cannot be followed: it wants the byte F1, which no token"):
        constraint(lacking, {"const": "a\U00040000"})
    assert constraint(byte_level(), {"const": "a\U00040000"}).forced()
    later = constraint(lacking, {"enum": ["a\U00040000", "b"]})
    with pytest.raises(EdgeInferError, match="wants the byte F1"):
        follow(later, lacking.encode('"a', add_special=False))


@pytest.fixture(scope="module")
def model_tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def is_allowed(model_tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    constraint = Guidance(model_tokenizer).constraint(Grammar("grammar", grammar))
    tokens = model_tokenizer.encode(text, add_special=False)
    if constraint.n_allowed(tokens) < len(tokens):
        return False
    for token in tokens:
        constraint.accept(token)
    return constraint.allows(2)


@pytest.mark.parametrize(
    ("root", "allowed", "forbidden"),
    [
        (r'"\u00e9\u0041\U0001F600\x42\xe9\u0022\u000a"', 'éA😀Bé"\n', "é"),
        (r'"\\u0041"', r"\u0041", "A"),
        (r"[\u00e0-\u00ef\U0001F600]+", "àé😀", "ð"),
        (r"[^\u00e9]", "e", "é"),
        ("[a-z&&b]+", "a&b", "|"),
        ("[a~~b]+", "a~b", "c"),
        ("[--9]+", "-5./", ","),
        ("[a-]+", "a-", "b"),
        ("[-a]+", "a-", "b"),
        (r"[\x2d-9]", ".", ","),
        ('"\t" [\n]', "\t\n", "\t\t"),
        (r"[\]\[\\^]+", r"[\]^", "x"),
        ('"#" [#]  # "[a.', "##", "#"),
        (". [.]", "\n.", ".a"),
        ('start "start" ("b" start)*\nstart ::= "a."', "a.startba.", "a\nstart"),
    ],
)
def test_characters_are_those_of_llama_cpp(model_tokenizer: Tokenizer, root: str, allowed: str, forbidden: str) -> None:
    assert is_allowed(model_tokenizer, f"root ::= {root}\n", allowed)
    assert not is_allowed(model_tokenizer, f"root ::= {root}\n", forbidden)


@pytest.mark.parametrize("root", [r'"\ud800"', r"[\uDFFF]", r'"\UFFFFFFFF"', r'"\u00', "[a", r'"\q"', "[^]"])
def test_what_is_no_character_is_refused(model_tokenizer: Tokenizer, root: str) -> None:
    with pytest.raises(BadSetting, match="grammar"):
        Guidance(model_tokenizer).constraint(Grammar("grammar", f"root ::= {root}"))


def test_grammars_in_larks_form_stay_as_they_are() -> None:
    grammar = r'start: "\u0041" /[a-z&&b]/'
    assert spelled(grammar) == grammar


@pytest.mark.parametrize(
    "end", ["[a.b", "[item+\nitem ::= [item+\nitem ::= [x", '"a.b', '"a.b\\', "[a\\", '"a\\"', "[\\]"]
)
def test_what_is_not_closed_stays_as_it_is_written(end: str) -> None:
    assert spelled(f'root ::= "a" . {end}') == rf'root ::= "a" [^\x00] {end}'


@pytest.mark.parametrize("grammar", ['root ::= "a"', 'start: "a"'], ids=["gbnf", "lark"])
def test_blank_lines_cost_time_by_their_number_alone(model_tokenizer: Tokenizer, grammar: str) -> None:
    lines = "\n" * 1_000_000  # with the square of it this would take an hour
    found = Guidance(model_tokenizer).constraint(Grammar("grammar", f"{lines}{grammar}\n"))
    assert list(found.forced()) == model_tokenizer.encode("a", add_special=False)


def test_much_text_without_a_choice_is_refused_before_it_becomes_tokens(model_tokenizer: Tokenizer) -> None:
    most = '"' + "]" * 1000 + '"'
    with pytest.raises(BadSetting, match=f"bytes without a choice; {MOST_FORCED} are the most"):
        Guidance(model_tokenizer).constraint(Grammar("grammar", f"root ::= {most} root"))
    later = Guidance(model_tokenizer).constraint(Grammar("grammar", f'root ::= "a" | "b" more\nmore ::= {most} more'))
    later.accept(model_tokenizer.encode("b", add_special=False)[0])
    with pytest.raises(EdgeInferError, match="without a choice"):
        later.forced()


def test_large_sets_cost_time_by_their_number_of_characters_alone() -> None:
    ranges = "a-z0 " * 1_000_000  # with the square of it this would take hours
    assert spelled(f"root ::= [^{ranges}-]") == rf"root ::= [^{ranges}\x2d]"


def test_text_that_never_ends_is_refused_before_it_takes_much_memory(model_tokenizer: Tokenizer) -> None:
    endless = Grammar("grammar", 'root ::= "a" root')
    with pytest.raises(BadSetting, match=f"limit {MOST_ITEMS}"):
        Guidance(model_tokenizer).constraint(endless)
