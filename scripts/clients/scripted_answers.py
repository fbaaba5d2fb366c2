"""The answers that the recording server plays, by scene: what a model might say in an agent's loop.

Every scene is a list of answers, one for each request of a client. Knows neither HTTP nor clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One answer: `calls` are names and arguments as text, which may be empty."""

    content: str | None = None
    thoughts: str | None = None
    calls: tuple[tuple[str, str], ...] = ()

    def call_records(self, first: int) -> list[dict[str, Any]]:
        """The calls in OpenAI's form; `first`: number of calls before them, so that their ids are always the same."""
        return [
            {"id": f"call_{number:04}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(self.calls, first + 1)
        ]


KOELN = ("weather", '{"city": "Köln", "days": 2}')
ROME = ("weather", '{"city":"Rome","days":1}')
ATLANTIS = ("weather", '{"city": "Atlantis", "days": 3}')

SCENES: dict[str, list[Answer]] = {
    "plain": [Answer("Hello! What is it?"), Answer("A river in the «Eifel».\n\nIt is short.")],
    "tools": [
        Answer("I will look.", calls=(KOELN,)),
        Answer(calls=(ROME, ("clock", ""))),
        Answer(calls=(ATLANTIS,)),
        Answer("", calls=(("clock", "{}"),)),
        Answer("Rome is dry."),
    ],
    "thoughts": [
        Answer(thoughts="They want rain in Köln: I ask for it.", calls=(KOELN,)),
        Answer("5 mm.", thoughts="The tool says 5."),
        Answer("No.", thoughts="It said so before."),
    ],
    "structured": [Answer(calls=(KOELN,)), Answer('{"city": "Köln", "rain_mm": 5}')],
    "typed": [Answer(calls=(KOELN,)), Answer(calls=(("final_result", '{"city": "Köln", "rain_mm": 5}'),))],
    "instructions": [Answer("Ja."), Answer(calls=(("clock", "{}"),)), Answer("Zwölf.")],
    "required": [Answer(calls=(KOELN, ("clock", "{}"))), Answer("Dry at noon.")],
    "named": [Answer(calls=(("clock", "{}"),)), Answer("Noon.")],
    "allowed": [Answer(calls=(("clock", "{}"),)), Answer("Noon.")],
}
"""typed: a client asks for the final answer as a call of a function of its own; allowed: it lets some functions be
called."""


def call_count(scene: str, number: int) -> int:
    """The number of calls in the scene's answers before this one."""
    return sum(len(answer.calls) for answer in SCENES[scene][:number])
