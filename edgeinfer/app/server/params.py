"""Converts request fields to messages and engine options.

In: validated bodies. Out: messages, sampling options. Raises APIError for what edgeinfer does not support: no field
that would change an answer is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.schemas import NO_LIMIT, ChatMessage, ChatRequest, NamedTool, ResponseFormat, Sampling

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options


SAME = frozenset({"temperature", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty", "grammar"})
"""Fields with the same name and meaning in the engine."""


def options_of(body: Sampling, defaults: Options, max_tokens: int | None) -> Options:
    """The engine options of a request."""
    same = cast("Options", body.model_dump(include=set(SAME), exclude_none=True))
    options: Options = {**defaults, **same, "keeps_all": True}
    if body.top_p is not None:
        options["top_p"] = body.top_p or 1e-6  # 0 asks for the most likely token only
    if body.top_k is not None:
        options["top_k"] = max(0, body.top_k)
    if body.seed is not None and body.seed >= 0:
        options["seed"] = body.seed
    if body.stop is not None:
        options["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    if body.logit_bias:
        options["logit_bias"] = {_token(key): value for key, value in body.logit_bias.items()}
    if max_tokens == NO_LIMIT:
        options.pop("max_tokens", None)
    elif max_tokens is not None:
        options["max_tokens"] = max_tokens
    if body.json_schema is not None:
        options["schema"] = body.json_schema
    return options


def seeded(options: Options, n: int) -> list[Options]:
    """The options of each of `n` choices; seeds differ, since with the same seed all choices would be equal."""
    seed = options.get("seed")
    return [options if seed is None else {**options, "seed": seed + number} for number in range(n)]


def _token(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise APIError(400, f"logit_bias names {key!r}; its keys are numbers of tokens", param="logit_bias") from None


def chat_options(body: ChatRequest, defaults: Options) -> Options:
    """The engine options of a chat request. Raises APIError."""
    if body.modalities and body.modalities != ["text"]:
        raise APIError(501, "edgeinfer answers with text only", param="modalities")
    if body.functions is not None or body.function_call is not None:
        raise APIError(400, "functions and function_call are old: use tools and tool_choice", param="functions")
    options = options_of(body, defaults, body.max_completion_tokens or body.max_tokens)
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise APIError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if body.response_format is not None and body.response_format.type != "text":
        if body.json_schema is not None or body.grammar is not None:
            raise APIError(
                400,
                "an answer follows response_format, json_schema or grammar: leave the others out",
                param="response_format",
            )
        options["schema"] = _schema(body.response_format)
    if body.chat_template_kwargs:
        options["template_variables"] = body.chat_template_kwargs
    if body.tools:
        choice = body.tool_choice
        options["tools"] = [tool.model_dump(exclude_none=True) for tool in body.tools]
        options["tool_choice"] = choice.function.name if isinstance(choice, NamedTool) else choice or "auto"
        options["parallel_tools"] = body.parallel_tool_calls is not False
    elif body.tool_choice not in (None, "none", "auto"):
        raise APIError(400, "tool_choice wants a tool called, and there are no tools", param="tool_choice")
    return options


def _schema(response_format: ResponseFormat) -> str | Literal[True] | dict[str, Any]:
    """The JSON schema that an answer must follow; True: any JSON. Raises APIError."""
    if response_format.type == "json_object":
        return True if response_format.schema_ is None else response_format.schema_
    wrapped = response_format.json_schema
    schema = response_format.schema_ if wrapped is None else wrapped.schema_
    if schema is None:
        raise APIError(400, "response_format json_schema needs json_schema.schema", param="response_format")
    if schema is False:
        raise APIError(400, "the schema false allows no answer at all", param="response_format")
    return json.dumps({} if schema is True else schema)


def messages_of(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Convert messages to the form that chat templates take. Raises APIError for parts other than text."""
    records = []
    for number, message in enumerate(messages):
        record = message.model_dump(exclude_none=True)
        if isinstance(message.content, list):
            for part in message.content:
                if part.type != "text" or part.text is None:
                    raise APIError(
                        501 if part.type != "text" else 400,
                        f"a part of messages[{number}] is {part.type!r}; edgeinfer reads text parts only",
                        param="messages",
                    )
            record["content"] = "".join(part.text or "" for part in message.content)
        record.setdefault("content", "" if message.role != "assistant" or not message.tool_calls else None)
        records.append(record)
    return records
