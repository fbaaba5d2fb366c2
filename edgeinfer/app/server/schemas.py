"""Request bodies that several routes share: OpenAI's fields and llama-server's additions.

In: JSON. Out: validated models. Unknown fields are ignored, as in OpenAI's own server; fields that would change an
answer in a way that edgeinfer does not support are refused (`params`). Does not depend on the engine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

MOST_STOPS = 32
MOST_CHOICES = 16

Text = Annotated[str, Field(max_length=16 << 20)]
Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-1, lt=1 << 64)]
Count = Annotated[int, Field(ge=1, lt=1 << 31)]


def _not_zero(limit: int) -> int:
    if not limit:
        raise PydanticCustomError("limit", "it must be 1 or more, or -1 for no limit")
    return limit


NO_LIMIT = -1
Limit = Annotated[int, Field(ge=NO_LIMIT, lt=1 << 31), AfterValidator(_not_zero)]


class RequestBody(BaseModel):
    """A request body; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")


class StreamOptions(RequestBody):
    include_usage: bool = False


class JsonSchema(RequestBody):
    name: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestBody):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class Sampling(RequestBody):
    """Sampling parameters shared by all routes that generate."""

    model: str | None = Field(default=None, max_length=500)
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] | None = None
    seed: Seed | None = None
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    logit_bias: dict[str, Bias] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    grammar: Text | None = None
    json_schema: dict[str, Any] | None = None
    priority: Literal["interactive", "background"] | None = None


class ContentPart(RequestBody):
    type: str = "text"
    text: Text | None = None


class FunctionCall(RequestBody):
    name: str
    arguments: str | dict[str, Any] = "{}"


class MessageToolCall(RequestBody):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(RequestBody):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class FunctionDefinition(RequestBody):
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.\-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestBody):
    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(RequestBody):
    name: str


class NamedTool(RequestBody):
    type: Literal["function"] = "function"
    function: NamedFunction


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
