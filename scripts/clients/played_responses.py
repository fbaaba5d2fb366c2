"""Scripted answers as objects and events of OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clients.scripted_answers import Answer

Record = dict[str, Any]


def response_object(answer: Answer, first: int, number: int) -> Record:
    """A completed response: thoughts, then text, then calls."""
    output: list[Record] = []
    if answer.thoughts:
        summary = [{"type": "summary_text", "text": answer.thoughts}]
        output.append({"type": "reasoning", "id": f"rs_{number:04}", "summary": summary})
    if answer.content:
        part = {"type": "output_text", "text": answer.content, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": f"msg_{number:04}", "role": "assistant", "status": "completed"}
        output.append({**message, "content": [part]})
    for call in answer.call_records(first):
        identity = {"type": "function_call", "id": f"fc_{call['id'][5:]}", "call_id": call["id"]}
        output.append({**identity, **call["function"], "status": "completed"})
    return {**_response(number, "completed"), "output": output, "usage": _USAGE}


def response_events(whole: Record) -> Iterator[Record]:
    """The events of a streamed response."""
    for number, event in enumerate(_events(whole)):
        yield {"sequence_number": number, **event}


def _events(whole: Record) -> Iterator[Record]:
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            yield from _message_events(item, place)
        elif item["type"] == "function_call":
            started = {**item, "arguments": "", "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": started}
            yield {"type": "response.function_call_arguments.delta", "delta": item["arguments"], **place}
            yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"], **place}
        else:
            yield {"type": "response.output_item.added", "output_index": index, "item": {**item, "summary": []}}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": whole}


def _message_events(item: Record, place: Record) -> Iterator[Record]:
    started = {**item, "content": [], "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": place["output_index"], "item": started}
    for index, part in enumerate(item["content"]):
        where = {**place, "content_index": index}
        yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
        yield {"type": "response.output_text.delta", **where, "delta": part["text"], "logprobs": []}
        yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **where, "part": part}


_USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 15,
}


def _response(number: int, status: str) -> Record:
    return {
        "id": f"resp_{number:04}",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": "test-model",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": None,
        "top_p": None,
    }
