"""Calls of tools in chats that the server's page exported: there they are messages, here they belong to their answer.

In: the messages of such a file, and the objects they were read from. Out: messages without those that were calls and
results. What is no call as the page writes it stays a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgeinfer.app.sessions.records import KeptMessage, MadeCall, ToolRound


@dataclass(frozen=True, slots=True)
class _Chain:
    """Calls and results up to a message: the message before them, and what was called by its id in the last round."""

    parent: int | None
    rounds: tuple[ToolRound, ...]
    calls: Mapping[str, tuple[str, str]]

    def with_result(self, id: str, message: KeptMessage, *, failed: bool) -> _Chain:
        """The chain with the result of one more call."""
        name, arguments = self.calls.get(id, ("tool", "{}"))
        last = self.rounds[-1]
        made = replace(last, calls=(*last.calls, MadeCall(name, arguments, message.text, failed)))
        return replace(self, rounds=(*self.rounds[:-1], made))


def with_rounds(messages: Sequence[KeptMessage], found: Mapping[int, Mapping[str, object]]) -> tuple[KeptMessage, ...]:
    """The messages with calls and results moved into the answers that follow them. Parents precede their children.

    `found`: the object of each message, by number.
    """
    goes_on = {one.parent for one in messages if one.role == "assistant" or "tool_call_id" in found[one.number]}
    chains: dict[int | None, _Chain] = {}
    kept: list[KeptMessage] = []
    for message in messages:
        chain = chains.get(message.parent) or _Chain(message.parent, (), {})
        calls, id = _calls_of(found[message.number]), found[message.number].get("tool_call_id")
        if message.role == "assistant" and calls:
            begun = ToolRound(message.text, thoughts=str(found[message.number].get("thoughts") or ""))
            chain = _Chain(chain.parent, (*chain.rounds, begun), calls)
        elif isinstance(id, str) and chain.rounds:
            chain = chain.with_result(id, message, failed=found[message.number].get("failed") is True)
        else:
            kept.append(replace(message, parent=chain.parent, rounds=chain.rounds or message.rounds))
            continue
        if message.number in goes_on:
            chains[message.number] = chain
        else:  # the answer was not given any more
            own = {"role": "assistant", "text": "", "state": "stopped", "parent": chain.parent}
            kept.append(replace(message, **own, rounds=chain.rounds))  # type: ignore[arg-type]
    return tuple(kept)


def _calls_of(found: Mapping[str, object]) -> Mapping[str, tuple[str, str]]:
    """Names and arguments of the calls of a message, by their ids."""
    listed = found.get("tool_calls")
    calls: dict[str, tuple[str, str]] = {}
    for call in listed if isinstance(listed, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            calls[str(call.get("id"))] = str(function.get("name")), str(function.get("arguments"))
    return calls
