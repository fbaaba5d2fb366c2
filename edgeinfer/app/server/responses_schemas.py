"""Request bodies of POST /v1/responses, and their conversion to chat requests.

In: JSON, also with the sampling fields that other routes take. Out: validated models, and the equivalent `ChatRequest`.
Built-in tools that edgeinfer does not have, and items of their calls, are skipped: clients send them with every
request, whatever the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from edgeinfer.app.server.errors import APIError, unsupported
from edgeinfer.app.server.message_contents import Part, content_of, placed_image, placed_sound
from edgeinfer.app.server.request_images import data_url
from edgeinfer.app.server.requests import (
    AllowedList,
    AllowedTools,
    ChatMessage,
    ChatRequest,
    ContentPart,
    Count,
    FunctionCall,
    FunctionDefinition,
    ImageAddress,
    ImageURL,
    InputAudio,
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

if TYPE_CHECKING:
    from edgeinfer.models.images.image import Image

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for log probabilities."""


class MessagePart(RequestBody):
    """A part of a message: input text, an image, a sound, or output text of an earlier answer."""

    type: str = "input_text"
    text: Text | None = None
    image_url: ImageAddress | None = None
    input_audio: InputAudio | None = None
    file_id: Annotated[str, Field(max_length=500)] | None = None

    @property
    def address(self) -> str | None:
        """The data URL or the address of an image."""
        return self.image_url.url if isinstance(self.image_url, ImageURL) else self.image_url


class Item(RequestBody):
    """A message, a function call, the output of one, the thoughts before an answer, or the name of a stored item."""

    type: str = "message"
    id: Annotated[str, Field(max_length=500)] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | list[MessagePart] | None = None
    call_id: str | None = None
    namespace: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[MessagePart] | None = None
    summary: list[MessagePart] | None = None


REFERENCE = "item_reference"
_READ = frozenset({"message", "function_call", "function_call_output", "reasoning", REFERENCE})


def _readable(items: object) -> object:
    """Input items without those that edgeinfer does not read; one that has nothing but an id is a reference."""
    if not isinstance(items, list):
        return items
    typed = [
        {**each, "type": REFERENCE} if isinstance(each, dict) and _told(each) == {"id"} else each for each in items
    ]
    kinds = (each.get("type", "message") if isinstance(each, dict) else None for each in typed)
    return [each for each, kind in zip(typed, kinds, strict=True) if not isinstance(kind, str) or kind in _READ]


def _told(item: Mapping[object, object]) -> set[object]:
    return {name for name, value in item.items() if value is not None}


def with_images(item: Item, images: Mapping[str, Image]) -> Item:
    """An item with images, which are known by their addresses, as data URLs."""

    def own(part: MessagePart) -> MessagePart:
        image = images.get(part.address or "")
        return part if image is None else part.model_copy(update={"image_url": data_url(image)})

    fields = {"content": item.content, "output": item.output}
    changed = {name: [own(part) for part in value] for name, value in fields.items() if isinstance(value, list)}
    return item.model_copy(update=changed) if images else item


Items = Annotated[list[Item], Field(min_length=1)]


class FlatTool(RequestBody):
    """A function tool, with its fields at the top level; or a namespace, which has functions."""

    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list[FlatTool] | None = None

    def record(self) -> dict[str, Any]:
        """The tool as a response tells it."""
        if self.type != "namespace":
            return self.model_dump(exclude={"tools"})
        functions = [each.record() for each in self.tools or () if each.type == "function"]
        return {**self.model_dump(include={"type", "name", "description"}), "tools": functions}


class TextFormat(RequestBody):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class TextOptions(RequestBody):
    format: TextFormat | None = None


class NamedChoice(RequestBody):
    """A function that must be called, or, with the type "allowed_tools", those that may be."""

    type: str = "function"
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[FlatTool] | None = None


class ReasoningOptions(RequestBody):
    """How much the model thinks, and whether its thoughts are given as a summary."""

    effort: Annotated[str, Field(max_length=20)] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseRequest(Sampling, ThoughtControl):
    """POST /v1/responses."""

    input: Annotated[Text | Items, BeforeValidator(_readable, json_schema_input_type=Text | Items)]
    instructions: Text | None = None
    max_output_tokens: Count | None = None
    text: TextOptions | None = None
    tools: list[FlatTool] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    parse_special: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    store: bool | None = None
    reasoning: ReasoningOptions | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt: str | dict[str, Any] | None = None
    edgeinfer: dict[str, Any] | None = None

    @property
    def known_tools(self) -> list[FlatTool]:
        """The tools that edgeinfer has: functions, and namespaces of functions."""
        return [tool for tool in self.tools or () if tool.type in ("function", "namespace")]

    def functions(self) -> dict[str, tuple[str | None, FlatTool]]:
        """The functions that may be called, by the names that the model knows, with their namespaces. Raises APIError.

        Names may be the same in several namespaces.
        """
        found: dict[str, tuple[str | None, FlatTool]] = {}
        for tool in self.known_tools:
            is_function = tool.type == "function"
            for each in [tool] if is_function else tool.tools or ():
                if each.type != "function":
                    continue
                if not each.name:
                    raise APIError(400, "a function needs a name", param="tools")
                name = _full_name(None if is_function else tool.name, each.name)
                if name in found:
                    raise APIError(400, f"there are two functions {name!r}", param="tools")
                found[name] = None if is_function else tool.name, each
        return found

    def items(self) -> list[Item]:
        """The input as items."""
        return [Item(role="user", content=self.input)] if isinstance(self.input, str) else list(self.input)

    def as_chat(self, earlier: Sequence[Item] = ()) -> ChatRequest:
        """Convert to the equivalent chat request, after the items of `earlier` turns. Raises APIError."""
        if self.conversation is not None:
            raise unsupported(
                "this server has no conversations: send previous_response_id, or all items as input", "conversation"
            )
        if self.background:
            raise unsupported("this server answers while the client waits: leave background out", "background")
        if self.prompt is not None:
            raise unsupported("this server keeps no prompts: send instructions and input", "prompt")
        if self.n is not None and self.n > 1:
            raise APIError(400, "n: a response is one answer", param="n")
        if self.edgeinfer is not None:
            raise unsupported("several answers of which one is kept are for /v1/chat/completions", "edgeinfer")
        if self.top_logprobs or LOGPROBS in (self.include or ()):
            raise unsupported("logprobs are supported in /v1/chat/completions only", "top_logprobs")
        messages = [] if self.instructions is None else [ChatMessage(role="system", content=self.instructions)]
        messages += _messages([*earlier, *self.items()], len(earlier))
        if not messages:
            raise APIError(400, "there is nothing to answer in input", param="input")
        choice, fields = self.tool_choice, shared_fields(self)
        if self.reasoning is not None and self.reasoning.effort is not None:
            fields["reasoning_effort"] = self.reasoning.effort
        return ChatRequest(
            **fields,
            messages=messages,
            max_tokens=self.max_output_tokens,
            response_format=_format(self.text),
            tools=[_tool(name, tool) for name, (_, tool) in self.functions().items()] or None,
            tool_choice=_chosen(choice) if isinstance(choice, NamedChoice) else choice,
            parallel_tool_calls=self.parallel_tool_calls,
            parse_special=self.parse_special,
        )


def _messages(items: Sequence[Item], n_earlier: int) -> list[ChatMessage]:
    """Convert items to messages: the parts of one answer, thoughts, text and calls, are one message.

    `n_earlier`: items that come before the input.
    """
    messages: list[ChatMessage] = []
    answer: ChatMessage | None = None
    for number, item in enumerate(items, -n_earlier):
        part = _message(item, number)
        if part.role != "assistant":
            answer = None
        elif answer is None or ((answer.content or answer.tool_calls) and not part.tool_calls):
            answer = part
        else:
            answer.content = part.content or answer.content
            answer.tool_calls = [*(answer.tool_calls or ()), *(part.tool_calls or ())] or None
            thoughts = filter(None, (answer.reasoning_content, part.reasoning_content))
            answer.reasoning_content = "\n\n".join(thoughts) or None
            continue
        messages.append(part)
    return [each for each in messages if each.role != "assistant" or each.content is not None or each.tool_calls]


def _message(item: Item, number: int) -> ChatMessage:
    """Convert an input item to a message, or to a part of one."""
    if item.type == "message" and item.role is not None:
        return ChatMessage(role=item.role, content=_content(item.content, f"input[{number}].content"))
    if item.type == "function_call" and item.name is not None:
        name = _full_name(item.namespace, item.name)
        call = MessageToolCall(id=item.call_id, function=FunctionCall(name=name, arguments=item.arguments or "{}"))
        return ChatMessage(role="assistant", tool_calls=[call])
    if item.type == "function_call_output":
        content = _content(item.output, f"input[{number}].output")
        return ChatMessage(role="tool", content=content, tool_call_id=item.call_id)
    if item.type == "reasoning":
        told = item.content if item.content and not isinstance(item.content, str) else item.summary
        thoughts = "\n\n".join(part.text for part in told or () if part.text)
        return ChatMessage(role="assistant", reasoning_content=thoughts or None)
    if item.type != "function_call":
        raise APIError(400, f"input[{number}] needs a role", param="input")
    raise APIError(400, f"input[{number}] is a {item.type} without a name", param="input")


def _content(content: str | list[MessagePart] | None, place: str) -> str | list[ContentPart]:
    if content is None or isinstance(content, str):
        return content or ""
    return content_of(_part(part, f"{place}[{at}]") for at, part in enumerate(content) if part.type != "refusal")


def _part(part: MessagePart, place: str) -> Part:
    """A text, an image or a sound. Raises APIError for another part."""
    if part.type in ("input_text", "output_text", "text") and part.text is not None:
        return part.text
    if part.type == "input_audio":
        if part.input_audio is None:
            raise APIError(400, f"{place} has no input_audio", param=place)
        return placed_sound(part.input_audio, f"{place}.input_audio")
    if part.type != "input_image":
        raise unsupported(f"{place} is {part.type!r}; edgeinfer reads texts, images and sounds", place)
    if part.image_url is not None:
        return placed_image(part.image_url, f"{place}.image_url")
    if part.file_id is not None:
        raise unsupported(f"{place} has a file_id, and this server keeps no files: send an image_url", place)
    raise APIError(400, f"{place} has no image_url", param=place)


def _full_name(namespace: str | None, name: str) -> str:
    """The name by which the model knows a function."""
    return f"{namespace}__{name}" if namespace else name


def _tool(name: str, tool: FlatTool) -> Tool:
    function = FunctionDefinition(
        name=name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Tool(function=function)


def _chosen(choice: NamedChoice) -> NamedTool | AllowedTools:
    if choice.type == "allowed_tools":
        tools = [NamedTool(function=NamedFunction(name=tool.name)) for tool in choice.tools or () if tool.name]
        return AllowedTools(type="allowed_tools", allowed_tools=AllowedList(mode=choice.mode or "auto", tools=tools))
    if choice.type != "function" or not choice.name:
        raise APIError(400, "tool_choice must name a function", param="tool_choice")
    return NamedTool(function=NamedFunction(name=choice.name))


def _format(options: TextOptions | None) -> ResponseFormat | None:
    """The response format of the equivalent chat request."""
    text = None if options is None else options.format
    if text is None:
        return None
    if text.type != "json_schema":
        return ResponseFormat(type=text.type)
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(name=text.name, schema=text.schema_))
