"""From a request's fields to what the engine is asked for: one place where the two vocabularies meet.

In: checked bodies. Out: messages and options of an answer. Raises Refusal for what edgeinfer cannot do: nothing that
would change an answer is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from edgeinfer.app.server.asked import NO_LIMIT, ChatMessage, ChatRequest, NamedTool, ResponseFormat, Sampling
from edgeinfer.app.server.failures import Refusal

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options


SAME = frozenset({"temperature", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty", "grammar"})
"""Fields that the engine knows by the same name."""


def options_of(asked: Sampling, defaults: Options, max_tokens: int | None) -> Options:
    """How an answer is to be made."""
    same = cast("Options", asked.model_dump(include=set(SAME), exclude_none=True))
    options: Options = {**defaults, **same, "keeps_all": True}
    if asked.top_p is not None:
        options["top_p"] = asked.top_p or 1e-6  # 0 asks for the likeliest token alone
    if asked.top_k is not None:
        options["top_k"] = max(0, asked.top_k)
    if asked.seed is not None and asked.seed >= 0:
        options["seed"] = asked.seed
    if asked.stop is not None:
        options["stop"] = [asked.stop] if isinstance(asked.stop, str) else asked.stop
    if asked.logit_bias:
        options["logit_bias"] = {_token(key): value for key, value in asked.logit_bias.items()}
    if max_tokens == NO_LIMIT:
        options.pop("max_tokens", None)
    elif max_tokens is not None:
        options["max_tokens"] = max_tokens
    if asked.json_schema is not None:
        options["schema"] = asked.json_schema
    return options


def seeded(options: Options, n: int) -> list[Options]:
    """The options of each of `n` answers: one seed would make them all the same."""
    seed = options.get("seed")
    return [options if seed is None else {**options, "seed": seed + number} for number in range(n)]


def _token(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise Refusal(400, f"logit_bias names {key!r}; its keys are numbers of tokens", param="logit_bias") from None


def chat_options(asked: ChatRequest, defaults: Options) -> Options:
    """How the answer of a chat is to be made. Raises Refusal."""
    if asked.modalities and asked.modalities != ["text"]:
        raise Refusal(501, "edgeinfer answers with text only", param="modalities")
    if asked.functions is not None or asked.function_call is not None:
        raise Refusal(400, "functions and function_call are old: use tools and tool_choice", param="functions")
    options = options_of(asked, defaults, asked.max_completion_tokens or asked.max_tokens)
    if asked.logprobs:
        options["logprobs"] = asked.top_logprobs or 0
    elif asked.top_logprobs:
        raise Refusal(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if asked.response_format is not None and asked.response_format.type != "text":
        if asked.json_schema is not None or asked.grammar is not None:
            raise Refusal(
                400,
                "an answer follows response_format, json_schema or grammar: leave the others out",
                param="response_format",
            )
        options["schema"] = _schema(asked.response_format)
    if asked.chat_template_kwargs:
        options["template_variables"] = asked.chat_template_kwargs
    if asked.tools:
        choice = asked.tool_choice
        options["tools"] = [tool.model_dump(exclude_none=True) for tool in asked.tools]
        options["tool_choice"] = choice.function.name if isinstance(choice, NamedTool) else choice or "auto"
        options["parallel_tools"] = asked.parallel_tool_calls is not False
    elif asked.tool_choice not in (None, "none", "auto"):
        raise Refusal(400, "tool_choice wants a tool called, and there are no tools", param="tool_choice")
    return options


def _schema(wanted: ResponseFormat) -> str | Literal[True] | dict[str, Any]:
    """What JSON an answer must be. Raises Refusal."""
    if wanted.type == "json_object":
        return True if wanted.schema_ is None else wanted.schema_
    schema = wanted.schema_ if wanted.json_schema is None else wanted.json_schema.schema_
    if schema is None:
        raise Refusal(400, "response_format json_schema needs json_schema.schema", param="response_format")
    if schema is False:
        raise Refusal(400, "the schema false allows no answer at all", param="response_format")
    return json.dumps({} if schema is True else schema)


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
        found.append(given)
    return found
