"""From a request's fields to what the engine is asked for: one place where the two vocabularies meet.

In: checked bodies. Out: messages and options of an answer. Raises Refusal for what edgeinfer cannot do: nothing that
would change an answer is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgeinfer.app.server.asked import ChatMessage, ChatRequest, NamedTool, ResponseFormat, Sampling
from edgeinfer.app.server.failures import Refusal
from edgeinfer.models.text.tools import object_of

if TYPE_CHECKING:
    from edgeinfer.engine.request import Options


def options_of(asked: Sampling, defaults: Options, max_tokens: int | None) -> Options:
    """How an answer is to be made."""
    options: Options = {**defaults, "keeps_all": True}
    if asked.temperature is not None:
        options["temperature"] = asked.temperature
    if asked.top_p is not None:
        options["top_p"] = asked.top_p or 1e-6  # 0 asks for the likeliest token alone
    if asked.top_k is not None:
        options["top_k"] = max(0, asked.top_k)
    if asked.min_p is not None:
        options["min_p"] = asked.min_p
    if asked.presence_penalty is not None:
        options["presence_penalty"] = asked.presence_penalty
    if asked.frequency_penalty is not None:
        options["frequency_penalty"] = asked.frequency_penalty
    if asked.repeat_penalty is not None:
        options["repeat_penalty"] = asked.repeat_penalty
    if asked.seed is not None and asked.seed >= 0:
        options["seed"] = asked.seed
    if asked.stop is not None:
        options["stop"] = [asked.stop] if isinstance(asked.stop, str) else asked.stop
    if asked.logit_bias:
        options["logit_bias"] = {_token(key): value for key, value in asked.logit_bias.items()}
    if max_tokens is not None:
        options["max_tokens"] = max_tokens
    if asked.grammar is not None:
        options["grammar"] = asked.grammar
    if asked.json_schema is not None:
        options["schema"] = asked.json_schema
    return options


def _token(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise Refusal(400, f"logit_bias names {key!r}; its keys are numbers of tokens", param="logit_bias") from None


def chat_options(asked: ChatRequest, defaults: Options) -> Options:
    """How the answer of a chat is to be made. Raises Refusal."""
    if asked.modalities and asked.modalities != ["text"]:
        raise Refusal(501, "edgeinfer answers with text only", param="modalities")
    options = options_of(asked, defaults, asked.max_completion_tokens or asked.max_tokens)
    if asked.logprobs:
        options["logprobs"] = asked.top_logprobs or 0
    elif asked.top_logprobs:
        raise Refusal(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if asked.response_format is not None:
        _follow(asked.response_format, options)
    if asked.tools:
        choice = asked.tool_choice
        options["tools"] = [tool.model_dump(exclude_none=True) for tool in asked.tools]
        options["tool_choice"] = choice.function.name if isinstance(choice, NamedTool) else choice or "auto"
        options["parallel_tools"] = asked.parallel_tool_calls is not False
    elif asked.tool_choice not in (None, "none", "auto"):
        raise Refusal(400, "tool_choice wants a tool called, and there are no tools", param="tool_choice")
    return options


def _follow(wanted: ResponseFormat, options: Options) -> None:
    """Have the answer follow a format."""
    if wanted.type == "json_schema":
        schema = wanted.schema_ if wanted.json_schema is None else wanted.json_schema.schema_
        if schema is None:
            raise Refusal(400, "response_format json_schema needs json_schema.schema", param="response_format")
        options["schema"] = json.dumps(schema)
    elif wanted.type == "json_object":
        options["schema"] = True if wanted.schema_ is None else wanted.schema_


def messages_of(asked: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates want them. Raises Refusal for parts that are no text."""
    found = []
    for number, message in enumerate(asked):
        given = message.model_dump(exclude_none=True)
        if isinstance(message.content, list):
            for part in message.content:
                if part.type != "text" or part.text is None:
                    raise Refusal(
                        501 if part.type != "text" else 400,
                        f"a part of messages[{number}] is {part.type!r}; edgeinfer reads text parts only",
                        param="messages",
                    )
            given["content"] = "".join(part.text or "" for part in message.content)
        given.setdefault("content", "" if message.role != "assistant" or not message.tool_calls else None)
        for call in given.get("tool_calls", ()):
            call["function"]["arguments"] = object_of(call["function"]["arguments"])
        found.append(given)
    return found
