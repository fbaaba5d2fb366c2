"""OpenAI's response object and its output items: reasoning, a message, function calls.

In: what was asked, and parts of the answer. Out: plain records to be sent as JSON. Knows no HTTP and no events.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from edgeinfer.app.server.objects import Record, notices_record, usage_record
from edgeinfer.app.server.responses_schemas import Item, MessagePart, NamedChoice, ResponseRequest

if TYPE_CHECKING:
    from edgeinfer.engine.scheduler.stats import Stats
    from edgeinfer.models.text.tools import ToolCall

Status = Literal["in_progress", "completed", "incomplete"]


class ResponseObject:
    """The response object in its successive states."""

    def __init__(self, body: ResponseRequest, model: str) -> None:
        self._body, self._model, self._functions = body, model, body.functions()
        self._created = int(time.time())
        self.identity = secrets.token_hex(16)
        reasoning = body.reasoning
        self.summarises = reasoning is not None and (reasoning.summary or reasoning.generate_summary) is not None
        """Whether thoughts are given as a summary, as clients that ask for one read them."""

    def record(self, status: Status, output: Sequence[Record] = (), usage: Record | None = None) -> Record:
        """The response object in the given state."""
        body = self._body
        named = isinstance(body.tool_choice, NamedChoice) and body.tool_choice.model_dump(exclude_none=True)
        return {
            "id": f"resp_{self.identity}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": list(output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": None if body.reasoning is None else body.reasoning.model_dump(include={"effort", "summary"}),
            "store": body.store is not False,
            "temperature": body.temperature,
            "tool_choice": named or body.tool_choice or "auto",
            "tools": [tool.record() for tool in body.known_tools],
            "top_p": body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": usage,
        }

    def done(self, output: Sequence[Record], stats: Stats, n_thoughts: int) -> Record:
        """The finished response object, with what was left out of the prompt. `n_thoughts`: tokens of thoughts."""
        counts = usage_record([stats])
        usage = {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": min(n_thoughts, counts["completion_tokens"])},
            "total_tokens": counts["total_tokens"],
        }
        record = self.record("incomplete" if stats.finish_reason == "length" else "completed", output, usage)
        return {**record, **notices_record([stats])}

    def output(self, thoughts: str, content: str, calls: Sequence[ToolCall], *, is_cut: bool) -> list[Record]:
        """The output items; the last is incomplete if the answer was cut within it."""
        items = [self.reasoning(thoughts)] if thoughts else []
        if content or not (calls or (is_cut and thoughts)):
            items.append(self.message(content))
        if is_cut and not calls:
            items[-1]["status"] = "incomplete"
        return [*items, *map(self._call, calls)]

    def _call(self, call: ToolCall) -> Record:
        """The item of a call; a function of a namespace has its own name again."""
        identity = secrets.token_hex(12)
        namespace, function = self._functions.get(call.name, (None, None))
        return {
            "type": "function_call",
            "id": f"fc_{identity}",
            "call_id": f"call_{identity}",
            "name": call.name if function is None else function.name,
            **({} if namespace is None else {"namespace": namespace}),
            "arguments": call.arguments,
            "status": "completed",
        }

    def message(self, text: str, status: Status = "completed") -> Record:
        """The message item of the response; it has no parts yet while it is in progress."""
        content = [] if status == "in_progress" else [text_part(text)]
        identity = f"msg_{self.identity}"
        return {"type": "message", "id": identity, "status": status, "role": "assistant", "content": content}

    def reasoning(self, text: str, status: Status = "completed") -> Record:
        """The reasoning item of the response; it has no parts yet while it is in progress."""
        parts = [] if status == "in_progress" else [self.thought_part(text)]
        told = {"summary": parts} if self.summarises else {"summary": [], "content": parts}
        return {"type": "reasoning", "id": f"rs_{self.identity}", "status": status, **told}

    def thought_part(self, text: str) -> Record:
        """Thoughts as a part of the reasoning item."""
        return {"type": "summary_text" if self.summarises else "reasoning_text", "text": text}


def text_part(text: str) -> Record:
    """Text as a part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def input_item(item: Item) -> Record:
    """An item of a conversation, in the form of OpenAI's lists."""
    record: Record = {"type": item.type, "id": item.id, "status": "completed"}
    if item.type == "message":
        kind = "output_text" if item.role == "assistant" else "input_text"
        return record | {"role": item.role, "content": _parts(item.content, kind)}
    if item.type == "function_call":
        namespace = {} if item.namespace is None else {"namespace": item.namespace}
        return record | {"call_id": item.call_id, "name": item.name, **namespace, "arguments": item.arguments or "{}"}
    if item.type == "function_call_output":
        output = _parts(item.output, "input_text") if isinstance(item.output, list) else item.output or ""
        return record | {"call_id": item.call_id, "output": output}
    thoughts = {} if item.content is None else {"content": _parts(item.content, "reasoning_text")}
    return record | {"summary": _parts(item.summary, "summary_text"), **thoughts}


def _parts(content: str | Sequence[MessagePart] | None, kind: str) -> list[Record]:
    """Texts as parts of one kind, images and sounds."""
    parts = [MessagePart(text=content)] if isinstance(content, str) else content or ()
    more: Record = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return [_part(part, {"type": kind, "text": part.text or "", **more}) for part in parts]


def _part(part: MessagePart, text: Record) -> Record:
    """An image or a sound; `text` for another part."""
    if part.input_audio is not None:
        return {"type": "input_audio", "input_audio": part.input_audio.model_dump()}
    if part.address is not None:
        return {"type": "input_image", "image_url": part.address, "detail": "auto", "file_id": None}
    return text
