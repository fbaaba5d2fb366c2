"""What models write: thoughts and calls of all forms, in pieces."""

from __future__ import annotations

from edgeinfer.models.text.answer_reader import AnswerReader
from edgeinfer.models.text.thought_formats import THOUGHT_FORMATS
from edgeinfer.models.text.tool_formats import TOOL_FORMATS
from edgeinfer.models.text.tools import ToolReader

NAMES = frozenset({"f", "get_weather"})
ARGUMENTS = '{"city": "Paris", "days": [1, 2.5, null], "x": {"y": "a\\\\n\\"b"}}'


def seeds() -> list[bytes]:
    """A call between the marks of each form, after a thought; the first two bytes choose the forms."""
    found = []
    for number, form in enumerate(TOOL_FORMATS.entries().values()):
        call = f'{form.begin}{{"name": "get_weather", "arguments": {ARGUMENTS}}}{form.end}'
        found.append(bytes([number, number % 7]) + f"<think>hm</think>Let me see.\n{call}\nDone.".encode())
    return found


def run(data: bytes) -> None:
    """Read it in pieces of a few characters."""
    tool_forms, thought_forms = list(TOOL_FORMATS.entries().values()), list(THOUGHT_FORMATS.entries().values())
    first, second = (*data[:2], 0, 0)[:2]
    text = data[2:].decode("utf-8", "replace")[:20_000]
    tools = ToolReader(tool_forms[first % len(tool_forms)], NAMES)
    reader = AnswerReader(thought_forms[second % len(thought_forms)], tools)
    size = 1 + first % 9
    for at in range(0, len(text), size):
        reader.push(text[at : at + size])
    reader.finish()
