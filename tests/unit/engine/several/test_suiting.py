"""Which questions suit an answer in parts: rules against labels given by hand, and against questions people ask."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edgeinfer.engine.several.suiting import MOST_CHARACTERS, MOST_WORDS, suiting_of

DATA = Path(os.environ.get("EDGEINFER_TEST_DATA", Path(__file__).resolve().parents[4] / ".." / "shared" / "data"))
QUESTIONS = DATA / "spec_bench" / "questions.jsonl"
SUITED = {81, 103, 143, 149, 151, 153, 155, 157, 159, 383}
"""Questions of Spec-Bench whose answers are lists, comparisons, aspects or sections; read one by one."""
LABELLED = (
    *(81, 83, 85, 87, 89, 91, 95, 97, 99, 101, 103, 105, 107, 109, 111, 113, 115, 117, 119, 121, 123, 125, 127, 129),
    *(131, 133, 135, 137, 139, 141, 143, 145, 147, 149, 151, 153, 155, 157, 159, 321, 325, 329, 337, 341, 375, 383),
    *(401, 403, 405, 441, 481, 483, 485),
)

OWN = [
    ("Give me 5 tips for better sleep", "a list"),
    ("Name three reasons to learn Latin.", "a list"),
    ("What are the main causes of inflation?", "a list"),
    ("How can I improve my memory?", "a list"),
    ("List all the planets of the solar system", "a list"),
    ("Explain photosynthesis in three ways", "a list"),
    ("What are some good hobbies for winter?", "a list"),
    ("Compare tea and coffee", "a comparison"),
    ("What are the pros and cons of nuclear energy?", "a comparison"),
    ("What is the difference between a lake and a pond?", "a comparison"),
    ("Discuss the role of women in the French Revolution", "several aspects"),
    ("Describe the social and economic effects of railways", "several aspects"),
    ("Give an overview of Roman history", "several aspects"),
    ("Write an essay about democracy", "in sections"),
    ("Create a detailed marketing plan for a bakery", "in sections"),
]
UNSUITED = [
    ("", "no question"),
    ("  \n", "no question"),
    ("What is 2+2?", "numbers"),
    ("How many reasons are there?", "mathematics"),
    ("Solve x^2 = 4 and list all the solutions", "mathematics"),
    ("List the ways to prove that the square root of 2 is irrational", "mathematics"),
    ("Write a Python function that lists all the files", "code"),
    ("Compare these:\n```\na = 1\n```", "code"),
    ("Implement a stack and give three examples", "code"),
    ("Write a story about three ways to die", "one piece"),
    ("Write a haiku about autumn", "one piece"),
    ("Translate into German: the three main reasons", "given text"),
    ("Summarize the advantages and disadvantages", "given text"),
    ("In one sentence, what are the effects of smoking?", "short answer"),
    ("Name the benefits of sport, briefly", "short answer"),
    ("Who wrote Faust?", "a fact"),
    ("Where is Timbuktu?", "a fact"),
    ("Is it going to rain?", "a fact"),
    ("Solve this riddle: what has four legs?", "mathematics"),
    ("Explain step by step the causes of the war", "needs the one before"),
    ("Why is the sky blue?", "nothing in it"),
    ("Hello", "nothing in it"),
    ("Welche Vorteile hat Sport?", "nothing in it"),
]


@pytest.mark.parametrize(("question", "reason"), OWN)
def test_what_has_parts_suits(question: str, reason: str) -> None:
    found = suiting_of(question)
    assert (found.suits, reason in found.reason) == (True, True), found


@pytest.mark.parametrize(("question", "reason"), UNSUITED)
def test_what_has_none_does_not(question: str, reason: str) -> None:
    found = suiting_of(question)
    assert (found.suits, reason in found.reason) == (False, True), found


def test_a_question_with_a_long_text_does_not_suit() -> None:
    question = "What are the main causes of inflation?"
    assert "long text" in suiting_of("word " * MOST_WORDS + question).reason
    assert "long text" in suiting_of("很" * MOST_CHARACTERS + question).reason
    assert suiting_of("word " * (MOST_WORDS - 10) + question).suits


@pytest.mark.skipif(not QUESTIONS.is_file(), reason=f"no questions at {QUESTIONS}; set EDGEINFER_TEST_DATA")
def test_questions_that_people_ask_are_told_apart() -> None:
    asked = {}
    for line in QUESTIONS.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        asked[record["question_id"]] = record["turns"][0]
    wrong = [number for number in LABELLED if suiting_of(asked[number]).suits != (number in SUITED)]
    assert wrong == []
    others = ("translation", "summarization", "math_reasoning", "rag")
    lines = [json.loads(line) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    kinds = {record["category"] for record in lines if suiting_of(record["turns"][0]).suits}
    assert not kinds & set(others)
