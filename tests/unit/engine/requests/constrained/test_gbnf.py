"""Grammars of llama.cpp mean what they mean there."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeinfer.engine.requests.constrained.constraints import Grammar
from edgeinfer.engine.requests.constrained.gbnf import spelled
from edgeinfer.engine.requests.constrained.guidance import Guidance
from edgeinfer.errors import BadSetting
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.text import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    with GGUFFile.open(tiny_model) as file:
        return Tokenizer.from_metadata(file.metadata)


def is_allowed(tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    constraint = Guidance(tokenizer).constraint(Grammar("grammar", grammar))
    tokens = tokenizer.encode(text, add_special=False)
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
def test_characters_are_those_of_llama_cpp(tokenizer: Tokenizer, root: str, allowed: str, forbidden: str) -> None:
    assert is_allowed(tokenizer, f"root ::= {root}\n", allowed)
    assert not is_allowed(tokenizer, f"root ::= {root}\n", forbidden)


@pytest.mark.parametrize("root", [r'"\ud800"', r"[\uDFFF]", r'"\UFFFFFFFF"', r'"\u00', "[a", r'"\q"', "[^]"])
def test_what_is_no_character_is_refused(tokenizer: Tokenizer, root: str) -> None:
    with pytest.raises(BadSetting, match="grammar"):
        Guidance(tokenizer).constraint(Grammar("grammar", f"root ::= {root}"))


def test_grammars_in_larks_form_stay_as_they_are() -> None:
    grammar = r'start: "\u0041" /[a-z&&b]/'
    assert spelled(grammar) == grammar
