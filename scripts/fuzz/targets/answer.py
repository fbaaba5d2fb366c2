"""What models write: thoughts and calls of all forms. An answer is read alike in whatever pieces it comes."""

from __future__ import annotations

import random

from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.thought_formats import THOUGHT_FORMATS
from edgeinfer.models.text.tool_formats import TOOL_FORMATS
from edgeinfer.models.text.tools import ToolReader

USUAL_BYTES = 500
LONGEST_BYTES = 20_000
NAMES = frozenset({"f", "get_weather"})
ARGUMENTS = '{"city": "Paris", "days": [1, 2.5, null], "x": {"y": "a\\\\n\\"b"}}'
TOOL_FORMS = list(TOOL_FORMATS.entries().values())
THOUGHT_FORMS = list(THOUGHT_FORMATS.entries().values())
PARTS = (
    *(form.end for form in TOOL_FORMS if form.end),
    *(form.trigger for form in TOOL_FORMS),
    *(form.begin for form in THOUGHT_FORMS),
    *(form.end for form in THOUGHT_FORMS),
    *(
        "get_weather(city='Paris')",
        "[f()]",
        "f",
        '{"name": "f"}',
        '", "arguments": {',
        "<arg_key>x</arg_key>",
        "\n",
        " ",
    ),
)
Read = tuple[str, str, list[object]]


def seeds() -> list[bytes]:
    """A call between the marks of each form, after a thought; the first bytes choose the forms and the pieces."""
    found = []
    for number, form in enumerate(TOOL_FORMS):
        thought = THOUGHT_FORMS[number % len(THOUGHT_FORMS)]
        for call in (f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}', "get_weather(city='Paris', days=[1, 2])"):
            written = f"{thought.begin}hm{thought.end}Let me see.\n{form.trigger}{call}{form.end}\nDone."
            found.append(bytes([number, number % len(THOUGHT_FORMS), number]) + written.encode())
    found.append(bytes(3) + "".join(PARTS).encode()[:USUAL_BYTES])
    return found


def mutated(seeds: list[bytes], rng: random.Random, limit: int) -> bytes:
    """A changed answer, with marks of other forms in it."""
    from mutation import mutated as mutated_bytes

    data = bytearray(mutated_bytes(seeds, rng, limit))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randint(min(3, len(data)), len(data))
        data[at:at] = rng.choice(PARTS).encode() * rng.choice((1, 1, 1, 1, 3, 70))
    return bytes(data[:limit])


def run(data: bytes) -> None:
    """Read it whole, and in pieces."""
    tool_form, thought_form, cuts = (*data[:3], 0, 0, 0)[:3]
    text = data[3:].decode("utf-8", "replace")
    whole = _read([text], tool_form, thought_form)
    assert len(whole[0]) + len(whole[1]) <= len(text) + 2 * text.count(
        THOUGHT_FORMS[thought_form % len(THOUGHT_FORMS)].begin
    )
    rng, pieces, at = random.Random(cuts), [], 0
    while at < len(text):
        size = rng.choice((1, 1, 2, 3, 7, 40)) if cuts % 4 else rng.choice((1, 100, 1000))
        pieces.append(text[at : at + size])
        at += size
    other = _read(pieces, tool_form, thought_form)
    assert other == whole, f"{whole!r:.200} and in pieces {other!r:.200}"


def _read(pieces: list[str], tool_form: int, thought_form: int) -> Read:
    tools = ToolReader(TOOL_FORMS[tool_form % len(TOOL_FORMS)], NAMES)
    reader = AnswerReader(THOUGHT_FORMS[thought_form % len(THOUGHT_FORMS)], tools)
    content = [*map(reader.push, pieces), reader.finish()]
    return "".join(content), reader.thoughts, list(reader.calls)
