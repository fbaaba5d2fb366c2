"""Requests of real clients, as `scripts/record_client_histories.py` recorded them, and what they must keep.

Those of coding agents were recorded by `scripts/clients/scripted_server.py`; their scene is "coding".

Clients are none of ours: they decide what an agent's history looks like.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgeinfer.app.server.anthropic_schemas import MessagesRequest
from edgeinfer.app.server.message_contents import messages_of
from edgeinfer.app.server.requests import ChatRequest
from edgeinfer.app.server.responses_schemas import ResponseRequest
from scripts.clients.compact_histories import RecordedRequest, recorded_requests

FOLDER = Path(__file__).with_name("histories")
Messages = list[dict[str, Any]]


def recorded() -> list[RecordedRequest]:
    """All requests of all clients."""
    return [each for path in sorted(FOLDER.glob("*.json")) for each in recorded_requests(path.read_text("utf-8"))]


def named(request: RecordedRequest) -> str:
    """The name of a request's run."""
    return f"{request.client.split()[0].rpartition('/')[2]}-{request.scene}-{request.mode}"


def chat_of(request: RecordedRequest) -> ChatRequest:
    """The chat request that a request amounts to."""
    if request.path == "/v1/responses":
        return ResponseRequest.model_validate(request.body).as_chat()
    if request.path == "/v1/messages":
        return MessagesRequest.model_validate(request.body).as_chat()
    return ChatRequest.model_validate(request.body)


def told_apart(messages: Sequence[dict[str, Any]]) -> tuple[Messages, list[str]]:
    """A history in which every call, argument and result has a mark of its own; and these marks."""
    told, marks = [], []
    for message in messages:
        message = json.loads(json.dumps(message))
        for call in message.get("tool_calls") or ():
            mark = f"q{len(marks)}x"
            call["function"]["name"] += f"_{mark}"
            marks.append(call["function"]["name"])
            arguments = call["function"].get("arguments")
            found = json.loads(arguments or "{}") if not isinstance(arguments, dict) else arguments
            if found:
                found = {f"{name}_{mark}": _marked(value, mark) for name, value in found.items()}
                call["function"]["arguments"] = found if isinstance(arguments, dict) else json.dumps(found)
                marks += [*found, *map(str, found.values())]
        if message["role"] == "tool":
            marks.append(f"r{len(marks)}x")
            message["content"] += f" {marks[-1]}"
        told.append(message)
    return told, marks


def _marked(value: object, mark: str) -> object:
    number = 1000 + int(mark.strip("qx"))
    return number if isinstance(value, int) else f"{value}{mark}"


def last_of_runs(requests: Sequence[RecordedRequest]) -> Iterator[RecordedRequest]:
    """The last request of every run, which has all that was said; equal ones once."""
    seen = set()
    for request, following in zip(requests, [*requests[1:], None], strict=True):
        if following is not None and following.number:
            continue
        messages = messages_of(chat_of(request).messages)
        text = json.dumps([messages, request.body.get("tools")], sort_keys=True)
        if text not in seen:
            seen.add(text)
            yield request
