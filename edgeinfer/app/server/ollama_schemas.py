"""Request bodies of Ollama's API, and their conversion to chat requests.

In: JSON in Ollama's words. Out: validated models; the equivalent `ChatRequest`, sampling options, seconds to keep a
model. Options that concern only how Ollama runs a model (`num_gpu`, `use_mmap`, …) are ignored, as are unknown ones;
APIError refuses those that would change an answer in a way that edgeinfer does not support. `num_ctx` is ignored too:
the server's context is chosen when it starts, and a conversation that does not fit into it is shortened as Ollama does,
or refused if `truncate` is false. Runs nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.message_contents import content_of, embedded_image
from edgeinfer.app.server.request_media import NO_MEDIA, MediaPlaces
from edgeinfer.app.server.requests import (
    MOST_STOPS,
    NO_LIMIT,
    ChatMessage,
    ChatRequest,
    ContentPart,
    Count,
    FileText,
    FunctionCall,
    MessageToolCall,
    ModelName,
    Penalty,
    RequestBody,
    ResponseFormat,
    Sampling,
    Share,
    Temperature,
    Text,
    Tool,
)

_UNIT_S: Mapping[str, float] = MappingProxyType(
    {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
)
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_DURATION = re.compile(rf"(?P<sign>[+-]?)(?P<parts>(?:{_PART.pattern})+)")


def _seconds(value: object) -> object:
    """A duration in seconds: a number, or text such as "5m" or "1h30m"; infinite if negative."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            seconds = float(value)
        except ValueError:
            seconds = _spelled_seconds(value.strip())
    elif isinstance(value, int | float):
        seconds = float(value)
    else:
        return value
    if math.isnan(seconds):
        raise PydanticCustomError("duration", "it must be a number of seconds, or a duration such as 5m or -1")
    return math.inf if seconds < 0 else seconds


def _spelled_seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise PydanticCustomError("duration", "it must be a number of seconds, or a duration such as 5m or -1")
    seconds = sum(float(number) * _UNIT_S[unit] for number, unit in _PART.findall(match["parts"]))
    return -seconds if match["sign"] == "-" else seconds


KeepAlive = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=float | str)]
"""Seconds that a model stays loaded after a request; infinite: for good."""


def _format_known(form: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(form, str) and form not in ("", "json"):
        raise PydanticCustomError("format", 'it must be "json" or a JSON schema')
    return form


Format = Annotated[str | dict[str, Any], AfterValidator(_format_known)]
Think = bool | Literal["low", "medium", "high"]


class OllamaOptions(RequestBody):
    """Options that choose tokens. `num_predict`: 0 or less for no limit."""

    temperature: Temperature | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    num_predict: Annotated[int, Field(ge=-2, lt=1 << 31)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    mirostat: int | None = None

    def sampling(self) -> dict[str, Any]:
        """The fields that a request of OpenAI's API has too, by their names there."""
        shared = self.model_dump(exclude_none=True, include=set(Sampling.model_fields) - {"seed"})
        if self.seed is not None and self.seed >= 0:
            shared["seed"] = self.seed
        if self.num_predict is not None:
            shared["max_tokens"] = self.num_predict if self.num_predict > 0 else NO_LIMIT
        if self.tfs_z == 0:  # how Ollama's clients turn it off
            del shared["tfs_z"]
        return shared


class OllamaRequest(RequestBody):
    """What all requests say: the model, and how long it stays loaded."""

    model: Annotated[ModelName, Field(min_length=1)]
    keep_alive: KeepAlive | None = None


class AnswerRequest(OllamaRequest):
    """What POST /api/chat and POST /api/generate share. `stream` is on unless it is turned off."""

    stream: bool | None = None
    format: Format | None = None
    options: OllamaOptions | None = None
    think: Think | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncate: bool | None = None

    @property
    def media(self) -> MediaPlaces:
        """Where the first image stands."""
        return NO_MEDIA

    @property
    def unloads(self) -> bool:
        """Whether the model is to be unloaded at once."""
        return self.keep_alive == 0

    def fields(self) -> dict[str, Any]:
        """The fields of a chat request that do not concern its messages."""
        options = self.options or OllamaOptions()
        level = self.think if isinstance(self.think, str) else None
        return {
            **options.sampling(),
            "model": self.model,
            "response_format": _response_format(self.format),
            "enable_thinking": None if self.think is None else bool(self.think),
            "reasoning_effort": level,
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs if self.logprobs else None,
        }


def _response_format(form: str | dict[str, Any] | None) -> ResponseFormat | None:
    if not form:
        return None
    if isinstance(form, str):
        return ResponseFormat(type="json_object")
    return ResponseFormat(type="json_schema", schema=form)


class OllamaFunctionCall(RequestBody):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaToolCall(RequestBody):
    id: str | None = None
    function: OllamaFunctionCall


class OllamaMessage(RequestBody):
    """A message; `tool_name` and `tool_call_id` say which call a result belongs to."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | None = None
    thinking: Text | None = None
    images: list[FileText] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def as_message(self, place: str = "messages[0]") -> ChatMessage:
        """The message of a chat request. `place`: where the request has it."""
        calls = [
            MessageToolCall(
                id=call.id,
                function=FunctionCall(name=call.function.name, arguments=json.dumps(call.function.arguments)),
            )
            for call in self.tool_calls or ()
        ]
        return ChatMessage(
            role=self.role,
            content=_with_images(self.content, self.images, f"{place}.images"),
            name=self.tool_name,
            tool_calls=calls or None,
            tool_call_id=self.tool_call_id,
            reasoning_content=self.thinking or None,
        )


def _with_images(text: str | None, images: Sequence[str] | None, place: str) -> str | list[ContentPart] | None:
    """The content of a message whose images stand before its text, as Ollama has them."""
    if not images:
        return text
    return content_of([*(embedded_image(data, f"{place}[{at}]") for at, data in enumerate(images)), text or ""])


class OllamaChatRequest(AnswerRequest):
    """POST /api/chat. Without messages, it loads the model."""

    messages: list[OllamaMessage] | None = None
    tools: list[Tool] | None = None

    @property
    def media(self) -> MediaPlaces:
        """Where the first image stands."""
        numbered = enumerate(self.messages or ())
        first = next((f"messages[{number}].images[0]" for number, message in numbered if message.images), None)
        return MediaPlaces(first)

    def as_chat(self) -> ChatRequest:
        """Convert to the equivalent chat request. Raises APIError."""
        messages = [message.as_message(f"messages[{at}]") for at, message in enumerate(self.messages or ())]
        return ChatRequest(messages=messages, tools=self.tools or None, **self.fields())


class GenerateRequest(AnswerRequest):
    """POST /api/generate. Without a prompt, it loads the model.

    `context`: the tokens of an earlier conversation, which the prompt continues. `raw`: the prompt is the whole text.
    `suffix`: what follows the gap that is to be filled in, which begins after the prompt.
    """

    prompt: Text | None = None
    system: Text | None = None
    template: str | None = None
    suffix: Text | None = None
    raw: bool | None = None
    context: list[Annotated[int, Field(ge=0, lt=1 << 31)]] | None = None
    images: list[FileText] | None = None

    @property
    def media(self) -> MediaPlaces:
        """Where the first image stands."""
        return MediaPlaces("images[0]" if self.images else None)

    def check(self) -> None:
        """Raises APIError for what edgeinfer does not support, and for what excludes each other."""
        if self.images and (self.raw or self.suffix or self.context):
            raise APIError(400, "images go with a prompt alone: leave raw, suffix and context out", param="images")
        if self.raw and (self.template or self.system or self.context):
            raise APIError(400, "raw mode does not support template, system, or context", param="raw")
        if self.template:
            raise APIError(
                400,
                "edgeinfer uses the model's own template: leave template out, or write the whole prompt and set raw",
                param="template",
            )

    def as_chat(self) -> ChatRequest:
        """Convert to the equivalent chat request, in which `raw` and `context` are left out. Raises APIError."""
        messages = [ChatMessage(role="system", content=self.system)] if self.system else []
        content = _with_images(self.prompt, self.images, "images")
        messages.append(ChatMessage(role="user", content=content or ""))
        return ChatRequest(messages=messages, **self.fields())


class EmbedRequest(OllamaRequest):
    """POST /api/embed. `dimensions`: the first numbers of each embedding alone, scaled to length 1."""

    input: Text | list[str] | None = None
    truncate: bool | None = None
    dimensions: Count | None = None


class OldEmbeddingRequest(OllamaRequest):
    """POST /api/embeddings, which Ollama keeps for old clients."""

    prompt: Text | None = None


class NamedRequest(RequestBody):
    """A request about a model; old clients call it `name`."""

    model: ModelName | None = None
    name: ModelName | None = None

    @property
    def wanted(self) -> str:
        """The name of the model. Raises APIError."""
        name = self.model or self.name
        if not name:
            raise APIError(400, "model is required", param="model")
        return name


class ShowRequest(NamedRequest):
    """POST /api/show. `verbose`: long lists too, such as the vocabulary."""

    verbose: bool | None = None


class PullRequest(NamedRequest):
    """POST /api/pull. `stream` is on unless it is turned off."""

    stream: bool | None = None
