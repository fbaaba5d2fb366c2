"""Whether a question suits an answer in parts that do not see one another: rules over its words, in English.

In: a question. Out: whether, and why. An answer in parts is worth it where parts are of equal standing: lists, aspects,
comparisons, sections. It is wrong where each thing follows from another (mathematics, code, proofs, stories), and
useless for single facts. What no rule knows does not suit. Knows no models.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_WORDS, MOST_CHARACTERS = 160, 1500
"""Words and characters of a question; longer ones come with a text that they are about."""

_NUMBERS = (
    r"(?:\d{1,2}|two|three|four|five|six|seven|eight|nine|ten|several|some|a few|many|various|different|multiple)"
)
_THINGS = (
    r"(?:ways|tips|reasons|ideas|examples|benefits|advantages|disadvantages|drawbacks|strategies|methods|principles|"
    r"factors|causes|effects|consequences|impacts|features|aspects|types|kinds|steps to|stages|phases|norms|rules|"
    r"challenges|risks|problems|solutions|techniques|suggestions|recommendations|pieces of advice|activities|questions|"
    r"topics|arguments|lessons|characteristics|differences|similarities|trends|theories|uses|applications|options|"
    r"measures|practices|remedies|treatments|symptoms|implications|considerations|elements|components|insights|"
    r"facts about|places to|things to|foods|hobbies|mistakes|habits|roles|functions of|perspectives|issues)"
)
_WRITE = r"(?:write|compose|create|draft|develop|prepare|design|produce|make|devise|plan)"
_TEXTS = (
    r"(?:essay|article|guide|report|blog posts?|plan|overview|outline|proposal|itinerary|curriculum|brochure|handbook|"
    r"manual|checklist|agenda|review|white paper|schedule|campaign)"
)
_TELL = r"(?:discuss|explain|describe|explore|analy[sz]e|examine|outline|elaborate on|provide)"
_LIST = r"(?:list|enumerate|name|give|suggest|recommend|share|brainstorm|provide)"
_SOMEBODY = r"(?:I|we|you|one|people|individuals|a person|someone|companies|businesses|governments|students|parents)"
_DO_BETTER = (
    r"(?:improve|reduce|increase|prepare|learn|protect|manage|deal|cope|avoid|prevent|encourage|support|save|stay|"
    r"become|get better|overcome|promote)"
)


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)


_UNSUITED: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        _words(
            r"python|javascript|typescript|c\+\+|html|css|sql|bash|regex|source code|code|coding|algorithms?|"
            r"functions? (?:to|that|which|for|called|in)|scripts? (?:to|that|for)|programs? (?:to|that|which|for|in)|"
            r"implement (?:a|an|the) \w+|pseudocode|unit tests?|debug"
        ),
        "it asks for code",
    ),
    (
        _words(
            r"calculate|compute|solve|prove|proof|derive|equations?|inequality|integral|derivative|theorem|how many|"
            r"how much|probability|percent(?:age)?|area of|perimeter|square root|sum of|arithmetic|remainder|"
            r"mathematic\w*|math problems?"
        ),
        "it is about mathematics, where each step needs the one before",
    ),
    (re.compile(r"\d\s*[-+*/^=×÷<>]\s*\d|[$€£]\s?\d|\d\s?%"), "it has numbers to reckon with"),
    (
        _words(
            r"step[- ]by[- ]step|chain of thought|think (?:it )?through|riddle|puzzle|deduce|infer|logical(?:ly)?|"
            r"which of (?:these|the following)|multiple choice|what happens next|debate (?:with|against)"
        ),
        "each step of its answer needs the one before",
    ),
    (
        _words(
            r"stor(?:y|ies)|poems?|haikus?|sonnets?|limericks?|lyrics|songs? (?:about|for)|dialogues?|novels?|"
            r"screenplay|monologue|joke|speech as|letters? to|e-?mails?|tweets?|headlines?|slogans?|titles? for|"
            r"first paragraph|opening paragraph|scenes?|rap|verse"
        ),
        "it asks for a text that is one piece",
    ),
    (
        _words(
            r"translat\w+|rewrite|rephrase|paraphrase|correct(?:ing)? (?:the|this|my)|proofread|summari[sz]e|summary|"
            r"json|csv|xml|yaml|extract|classify|evaluate the following|identify the|"
            r"given (?:the|a|an) (?:following|set)"
        ),
        "it works on a given text",
    ),
    (
        _words(
            r"one word|one sentence|single (?:word|sentence)|yes or no|true or false|in a (?:word|sentence)|"
            r"one paragraph|(?:fewer|less) than (?:two|three|2|3|\d+ words|one hundred words)|briefly|in short|"
            r"short answer|no more than (?:one|two|\d+ words)"
        ),
        "it asks for a short answer",
    ),
    (
        re.compile(
            r"^\W*(?:who|whom|whose|when|where|which|how (?:long|old|far|tall|big|large|high|often|fast)|is|are|was|"
            r"were|do|does|did|has|have|had|will|should i)\b",
            re.IGNORECASE,
        ),
        "it asks for a fact",
    ),
)
_SUITED: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        _words(
            r"compare|contrast|comparison|differences? (?:between|among)|similarities (?:between|of)|pros and cons|"
            r"advantages and (?:disadvantages|drawbacks)|strengths and weaknesses|versus|vs\.?"
        ),
        "it asks for a comparison",
    ),
    (
        _words(
            rf"{_NUMBERS} (?:\w+[- ]){{0,4}}{_THINGS}|{_LIST} (?:me |us )?(?:\w+[- ]){{0,4}}{_THINGS}|"
            r"(?:list|enumerate) (?:\d|some|the|all|several|a few)|top (?:\d+|ten|five)"
        ),
        "it asks for a list",
    ),
    (
        _words(
            rf"what (?:are|were|could be|might be|would be) (?:\w+[- ]){{0,5}}{_THINGS}|"
            rf"what (?:\w+ ){{0,2}}{_THINGS} (?:are|do|can)|"
            rf"how (?:can|do|should|could|might|would) {_SOMEBODY} (?:best |better |effectively )?{_DO_BETTER}"
        ),
        "it asks for a list",
    ),
    (
        _words(
            rf"{_TELL} (?:\w+[-, ]+){{0,6}}{_THINGS}|discuss|(?:impact|effects?|influence|role) of .{{3,60}} on|"
            r"provide insights|overview of|aspects of"
        ),
        "it asks for several aspects",
    ),
    (
        _words(rf"{_WRITE} (?:\w+[-, ]+){{0,6}}{_TEXTS}|subheadings|sections"),
        "it asks for a text in sections",
    ),
)


@dataclass(frozen=True, slots=True)
class Suiting:
    """Whether a question suits an answer in parts, and why."""

    suits: bool
    reason: str


def suiting_of(question: str) -> Suiting:
    """Whether a question suits an answer in parts that do not see one another."""
    if not question.strip():
        return Suiting(False, "there is no question")
    if len(question) > MOST_CHARACTERS or len(question.split()) > MOST_WORDS:
        return Suiting(False, "it comes with a long text")
    if "```" in question:
        return Suiting(False, "it has code in it")
    for pattern, reason in _UNSUITED:
        if pattern.search(question):
            return Suiting(False, reason)
    for pattern, reason in _SUITED:
        if pattern.search(question):
            return Suiting(True, reason)
    return Suiting(False, "nothing in it asks for parts")
