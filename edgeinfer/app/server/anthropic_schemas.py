"""Request bodies of Anthropic's API (POST /v1/messages), and their conversion to chat requests.

In: JSON, also with the sampling fields that other routes take. Out: validated models, and the equivalent `ChatRequest`.
Fields that only concern Anthropic's servers (cache_control, metadata, service_tier, context_management …) are ignored;
content other than text, images and calls is refused. Runs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from edgeinfer.app.server.errors import APIError, invalid, unsupported
from edgeinfer.app.server.message_contents import Part, content_of, embedded_image, one_text, placed_image
from edgeinfer.app.server.requests import (
    MOST_STOPS,
    ChatMessage,
    ChatRequest,
    Count,
    FileText,
    FunctionCall,
    FunctionDefinition,
    JsonSchema,
    MessageToolCall,
    NamedFunction,
    NamedTool,
    RequestBody,
    ResponseFormat,
    Sampling,
    Text,
    ThoughtControl,
    Tool,
    shared_fields,
)

SERVER_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_")
"""Beginnings of the types of tools that Anthropic's servers run; a model elsewhere is not told of them."""
CHANGING_LINES = re.compile(r"(?:x-anthropic-[\w-]+:[^\n]*(?:\n+|$))+")
"""Lines at the beginning of a system prompt that change with every request, and say nothing to a model."""
EFFORTS = {"xhigh": "high", "max": "high"}
"""Efforts that chat templates do not know, and the nearest that they do."""
NO_THREADS = "thread_unsupported_request"
"""The error code at which Anthropic's client sends whole conversations from then on."""
NoneOrMore = Annotated[int, Field(ge=0, lt=1 << 31)]
"""A number of tokens; none: the prompt is read, so that it is known later."""


class Source(RequestBody):
    """What a document or an image is made of: its text, base64, or an address."""

    type: str = "text"
    data: FileText | None = None
    media_type: Annotated[str, Field(max_length=100)] | None = None
    url: FileText | None = None


class ContentBlock(RequestBody):
    """A block of content: text, a document, or an image."""

    type: str = "text"
    text: Text | None = None
    source: Source | None = None


class TurnBlock(ContentBlock):
    """A block of a turn: also thoughts, a call, or the result of one."""

    thinking: Text | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Text | list[ContentBlock] | None = None
    is_error: bool | None = None


class Turn(RequestBody):
    role: Literal["user", "assistant", "system"]
    content: Text | list[TurnBlock]


class ToolDefinition(RequestBody):
    """A function, or (with another type) a tool that Anthropic defines."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(RequestBody):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestBody):
    """Whether to think; with "adaptive" and "between_tools" the model or the server decides, as without."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(RequestBody):
    type: Literal["json_schema"] = "json_schema"
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestBody):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(Sampling, ThoughtControl):
    """POST /v1/messages/count_tokens."""

    messages: Annotated[list[Turn], Field(min_length=1, max_length=100_000)]
    max_tokens: NoneOrMore | None = None
    stop_sequences: Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    system: Text | list[ContentBlock] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    mcp_servers: list[Any] | None = None
    container: str | dict[str, Any] | None = None
    thread: str | dict[str, Any] | None = None

    def as_chat(self) -> ChatRequest:
        """Convert to the equivalent chat request. Raises APIError."""
        self._check()
        thinking, output, choice = self.thinking, self.output_config or OutputConfig(), self.tool_choice
        form = output.format or self.output_format
        fields = {**shared_fields(self), "stop": self._stops() or None}
        if thinking is not None:
            fields |= {"enable_thinking": _THINKS.get(thinking.type), "thinking_budget_tokens": thinking.budget_tokens}
        if output.effort is not None:
            fields["reasoning_effort"] = EFFORTS.get(output.effort, output.effort)
        try:
            return ChatRequest(
                **fields,
                messages=_messages(self.system, self.messages),
                max_tokens=self.max_tokens,
                tools=list(_tools(self.tools or ())) or None,
                tool_choice=None if choice is None else _chosen(choice),
                parallel_tool_calls=not (choice is not None and choice.disable_parallel_tool_use),
                response_format=None if form is None else _format(form),
            )
        except ValidationError as reason:
            raise invalid(reason.errors()) from None

    def _check(self) -> None:
        """Raises APIError for fields that would change the answer in ways that there are not."""
        if self.n is not None and self.n > 1:
            raise APIError(400, "n: a message is one answer", param="n")
        if self.mcp_servers:
            raise APIError(400, "mcp_servers: this server calls no tools; give them as tools", param="mcp_servers")
        if self.thread is not None:
            raise APIError(400, "thread: this server keeps none; send whole conversations", NO_THREADS, "thread")
        if self.container is not None:
            raise APIError(400, "container: this server runs no code; leave it out", param="container")

    def _stops(self) -> list[str]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [*(self.stop_sequences or ()), *stops]


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages."""

    max_tokens: NoneOrMore

    @property
    def shows_thoughts(self) -> bool:
        """Whether the client wants to see what the model thinks."""
        return self.thinking is None or self.thinking.display != "omitted"


_THINKS = {"enabled": True, "disabled": False}


def _messages(system: str | Sequence[ContentBlock] | None, turns: Sequence[Turn]) -> list[ChatMessage]:
    """The messages of a conversation; turns of the same role that follow each other are one."""
    told = [system] if isinstance(system, str) else [_text(block, "system") for block in system or ()]
    text = one_text(CHANGING_LINES.sub("", part, 1) if CHANGING_LINES.match(part) else part for part in told)
    messages = [ChatMessage(role="system", content=text)] if text else []
    numbered = [(f"messages[{number}]", turn) for number, turn in enumerate(turns)]
    for role, group in groupby(numbered, key=lambda pair: pair[1].role):
        blocks = [pair for place, turn in group for pair in _blocks(turn, place)]
        messages += _ROLES[role](blocks)
    return messages


def _blocks(turn: Turn, place: str) -> Iterator[tuple[str, TurnBlock]]:
    """The blocks of a turn, and where they are."""
    if isinstance(turn.content, str):
        yield f"{place}.content", TurnBlock(text=turn.content)
    else:
        for number, block in enumerate(turn.content):
            yield f"{place}.content[{number}]", block


def _told(blocks: Sequence[tuple[str, TurnBlock]]) -> list[ChatMessage]:
    """A system message amid the conversation."""
    return [ChatMessage(role="system", content=one_text(_text(block, place) for place, block in blocks))]


def _asked(blocks: Sequence[tuple[str, TurnBlock]]) -> list[ChatMessage]:
    """A turn of the user; results of calls come first, since they follow the calls in every chat template."""
    results = [_result(block, place) for place, block in blocks if block.type == "tool_result"]
    parts = [_part(block, place) for place, block in blocks if block.type != "tool_result"]
    return results if results and not any(parts) else [*results, ChatMessage(role="user", content=content_of(parts))]


def _result(block: TurnBlock, place: str) -> ChatMessage:
    told = block.content or ""
    parts = [told] if isinstance(told, str) else _parts(told, place)
    content = content_of(parts)
    text = content if isinstance(content, str) else one_text(part for part in parts if isinstance(part, str))
    if block.is_error and not text.casefold().startswith("error"):  # no chat template has a mark for it
        content = f"Error: {text}" if isinstance(content, str) else content_of(["Error: ", *parts])
    return ChatMessage(role="tool", content=content, tool_call_id=block.tool_use_id)


def _answered(blocks: Sequence[tuple[str, TurnBlock]]) -> list[ChatMessage]:
    """A turn of the model; thoughts that Anthropic's servers made unreadable are left out."""
    thoughts, texts, calls = [], [], []
    for place, block in blocks:
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            calls.append(_call(block, place))
        elif block.type != "redacted_thinking":
            texts.append(_text(block, place))
    content, reasoning = one_text(texts), "\n\n".join(filter(None, thoughts))
    return [
        ChatMessage(
            role="assistant",
            content=content or ("" if not calls else None),
            tool_calls=calls or None,
            reasoning_content=reasoning or None,
        )
    ]


def _call(block: TurnBlock, place: str) -> MessageToolCall:
    if not block.name:
        raise APIError(400, f"{place} needs the name of the tool", param="messages")
    arguments = json.dumps(block.input or {}, ensure_ascii=False)
    return MessageToolCall(id=block.id, function=FunctionCall(name=block.name, arguments=arguments))


_ROLES = {"system": _told, "user": _asked, "assistant": _answered}


def _text(block: ContentBlock, place: str) -> str:
    """The text of a block. Raises APIError if it is none."""
    if block.type == "text" and block.text is not None:
        return block.text
    if block.type == "document" and block.source is not None and block.source.type == "text":
        return block.source.data or ""
    if block.type == "text":
        raise APIError(400, f"{place} has no text", param=place)
    if block.type == "image":
        raise APIError(400, f"{place} is an image; images stand in turns of the user, and in results", param=place)
    raise APIError(400, f"{place} is {block.type!r}; edgeinfer reads text, images, calls and results", param=place)


def _part(block: ContentBlock, place: str) -> Part:
    """The text or the image of a block. Raises APIError if it is neither."""
    if block.type != "image":
        return _text(block, place)
    source, place = block.source or Source(type=""), f"{place}.source"
    if source.type == "base64" and source.data is not None:
        return embedded_image(source.data, place, source.media_type or "")
    if source.type == "url" and source.url is not None:
        return placed_image(source.url, place)
    if source.type == "file":
        raise unsupported(f"{place} is a file, and this server keeps none: send base64", place)
    raise APIError(400, f"{place} must be base64 with its data, or a url", param=place)


def _parts(blocks: Sequence[ContentBlock], place: str) -> list[Part]:
    return [_part(block, f"{place}.content[{number}]") for number, block in enumerate(blocks)]


def _tools(tools: Sequence[ToolDefinition]) -> Iterator[Tool]:
    """The functions among the tools. Raises APIError for tools whose arguments only Anthropic's models know."""
    for number, tool in enumerate(tools):
        if tool.input_schema is None and tool.type is not None and tool.type.startswith(SERVER_TOOLS):
            continue
        if tool.input_schema is None and tool.type not in (None, "custom"):
            raise APIError(400, f"tools[{number}] is {tool.type!r}, without an input_schema", param="tools")
        if not tool.name:
            raise APIError(400, f"tools[{number}] needs a name", param="tools")
        yield Tool(
            function=FunctionDefinition(
                name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
            )
        )


def _chosen(choice: ToolChoice) -> Literal["auto", "required", "none"] | NamedTool:
    if choice.type == "tool":
        if not choice.name:
            raise APIError(400, "tool_choice needs the name of a tool", param="tool_choice")
        return NamedTool(function=NamedFunction(name=choice.name))
    return "required" if choice.type == "any" else choice.type


def _format(form: OutputFormat) -> ResponseFormat:
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=form.schema_))
