"""Request bodies that several routes share, and their conversion to engine options.

In: JSON: OpenAI's fields and llama-server's additions. Out: validated models; sampling options. Unknown fields are
ignored, as in OpenAI's own server; APIError refuses fields that would change an answer in a way that edgeinfer does not
support. Runs nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from edgeinfer.app.server.dialects import Dialects, check_dialects, form_options, sampler_options
from edgeinfer.app.server.errors import APIError, unsupported
from edgeinfer.app.server.module_fields import ModuleName, ModuleNames
from edgeinfer.setting_values import Reuse

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options

MOST_STOPS = 32
MOST_CHOICES = 128
MOST_ADAPTERS = 1000

Text = Annotated[str, Field(max_length=16 << 20)]
FileText = Annotated[str, Field(max_length=128 << 20)]
"""A sound as base64, or an image as base64 or its address."""
Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
BiasOrNever = Bias | Literal[False]
BiasEntry = Annotated[list[Bias | str | Literal[False]], Field(min_length=2, max_length=2)] | dict[str, BiasOrNever]
Seed = Annotated[int, Field(ge=-1, lt=1 << 64)]
Count = Annotated[int, Field(ge=1, lt=1 << 31)]
ModelName = Annotated[str, Field(max_length=500)]
NO_LIMIT = -1
Limit = Annotated[int, Field(ge=NO_LIMIT, lt=1 << 31)]


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


class AdapterScale(RequestBody):
    """How much of a LoRA adapter is added."""

    id: Annotated[int, Field(ge=0, lt=1 << 31)]
    scale: Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)] = 0.0


AdapterList = Annotated[list[AdapterScale], Field(max_length=MOST_ADAPTERS)]


class Sampling(Dialects):
    """Sampling parameters shared by all routes that generate."""

    model: ModelName | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] | None = None
    seed: Seed | None = None
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    logit_bias: dict[str, BiasOrNever] | Annotated[list[BiasEntry], Field(max_length=1 << 20)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    grammar: Text | None = None
    json_schema: dict[str, Any] | None = None
    priority: Literal["interactive", "background"] | None = None
    lora: AdapterList | None = None
    modules: ModuleNames | None = None
    reuse: Reuse | None = None


class ImageURL(RequestBody):
    """Where an image is; `detail`, which other servers have, changes nothing: an encoder takes images as it does."""

    url: FileText = ""
    detail: Annotated[str, Field(max_length=20)] | None = None


ImageAddress = ImageURL | FileText
"""A data URL or an address, as an object or by itself, as some clients send it."""


class InputAudio(RequestBody):
    """A sound as base64; `format`, which OpenAI's API needs, changes nothing: the bytes say what they are."""

    data: FileText = ""
    format: Annotated[str, Field(max_length=20)] | None = None


class ContentPart(RequestBody):
    type: str = "text"
    text: Text | None = None
    name: ModuleName | None = None
    image_url: ImageAddress | None = None
    input_audio: InputAudio | None = None

    @property
    def address(self) -> str:
        """The data URL or the address of an image."""
        return self.image_url.url if isinstance(self.image_url, ImageURL) else self.image_url or ""


class FunctionCall(RequestBody):
    name: str
    arguments: str | dict[str, Any] | None = "{}"


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
    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.\-]+$")]
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


class AllowedList(RequestBody):
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class AllowedTools(RequestBody):
    """The functions that may be called, of those that there are."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedList


class ThoughtControl(RequestBody):
    """How much the model thinks before it answers."""

    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Annotated[str, Field(max_length=20)] | None = None


class ChatRequest(Sampling, ThoughtControl):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    web_search_options: dict[str, Any] | None = None
    reasoning_format: Annotated[str, Field(max_length=20)] | None = None
    thinking_budget_tokens: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    parse_special: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    verbose: bool = False

    def check_end(self) -> None:
        """Raises APIError unless an answer begins after the last message, or continues one of the assistant."""
        continues = self.messages[-1].role == "assistant"
        if self.add_generation_prompt and self.continue_final_message:
            message = "add_generation_prompt and continue_final_message cannot both be true"
            raise APIError(400, message, param="continue_final_message")
        if self.continue_final_message and not continues:
            message = "continue_final_message needs a last message of the assistant"
            raise APIError(400, message, param="continue_final_message")
        if self.add_generation_prompt is False and not continues:
            raise unsupported("an answer has to begin: leave add_generation_prompt out", "add_generation_prompt")


ELSEWHERE = frozenset(
    {"stream", "stream_options", "n", "n_probs", "post_sampling_probs", "return_progress", "timings_per_token"}
)
"""Fields about how an answer is told, which other APIs than OpenAI's chat completions say in their own way."""


def shared_fields(body: Sampling) -> dict[str, Any]:
    """The fields of a request of another API that a chat request has by the same names."""
    names = {*Sampling.model_fields, *ThoughtControl.model_fields} - ELSEWHERE
    return body.model_dump(include=names, exclude_none=True)


SAME = frozenset(
    {
        *("temperature", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty"),
        *("grammar", "ignore_eos", "reuse"),
    }
)
"""Fields with the same name and meaning in the engine."""


def options_of(body: Sampling, defaults: Options, max_tokens: int | None) -> Options:
    """The engine options of a request."""
    same = cast("Options", body.model_dump(include=set(SAME), exclude_none=True))
    check_dialects(body)
    options: Options = {**defaults, **same, "keeps_all": True}
    if body.top_p is not None:
        options["top_p"] = body.top_p or 1e-6  # 0 asks for the most likely token only
    if body.top_k is not None:
        options["top_k"] = max(0, body.top_k)
    if body.seed is not None and body.seed >= 0:
        options["seed"] = body.seed
    if body.stop is not None:
        options["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop
    if body.repetition_penalty is not None:
        options["repeat_penalty"] = body.repetition_penalty
    if body.repeat_last_n is not None:
        options["penalty_window"] = body.repeat_last_n
    if body.n_probs:
        options["logprobs"] = body.n_probs
    if body.post_sampling_probs:
        options["after_sampling"] = True
    if body.logit_bias:
        options["logit_bias"] = _biases(body.logit_bias)
    if body.samplers is not None:
        options |= sampler_options(body.samplers)
    max_tokens = body.n_predict if max_tokens is None else max_tokens
    if max_tokens == NO_LIMIT:
        options.pop("max_tokens", None)
    elif max_tokens is not None:
        options["max_tokens"] = max_tokens
    if form := form_options(body):
        if body.json_schema is not None or body.grammar is not None:
            raise APIError(400, "an answer has one form: leave json_schema and grammar out", param="json_schema")
        options |= form
    if body.json_schema is not None:
        options["schema"] = body.json_schema
    if body.modules:
        options["modules"] = body.modules
    if body.lora is not None:
        options["lora"] = adapter_scales(body.lora)
    return options


def adapter_scales(scales: Sequence[AdapterScale]) -> dict[int | str, float]:
    """The scales of LoRA adapters by number."""
    return {each.id: each.scale for each in scales}


def seeded(options: Options, n: int) -> list[Options]:
    """The options of each of `n` choices; seeds differ, since with the same seed all choices would be equal."""
    seed = options.get("seed")
    return [options if seed is None else {**options, "seed": seed + number} for number in range(n)]


def _biases(told: dict[str, float] | Sequence[Sequence[float | str] | dict[str, float]]) -> dict[int | str, float]:
    """The biases of tokens by number or text; false forbids a token. Raises APIError."""
    entries = [told] if isinstance(told, dict) else told
    pairs: list[Any] = []
    for entry in entries:
        pairs += entry.items() if isinstance(entry, dict) else [entry]
    biases: dict[int | str, float] = {}
    for key, value in pairs:
        if isinstance(value, str) or isinstance(key, bool) or (isinstance(key, float) and not key.is_integer()):
            raise APIError(400, f"logit_bias: {[key, value]} is no token and its bias", param="logit_bias")
        token = key if isinstance(key, str) and not key.isdecimal() else int(key)
        biases[token] = -math.inf if value is False else float(value)
    return biases


def chat_options(body: ChatRequest, defaults: Options) -> Options:
    """The engine options of a chat request. Raises APIError."""
    if body.modalities and body.modalities != ["text"]:
        raise unsupported("edgeinfer answers with text only", "modalities")
    if body.web_search_options is not None:
        raise unsupported("edgeinfer searches nothing: leave web_search_options out", "web_search_options")
    if body.reasoning_format == "none":
        raise unsupported("thoughts are always told apart from content: leave it out", "reasoning_format")
    if body.functions is not None or body.function_call is not None:
        raise APIError(400, "functions and function_call are old: use tools and tool_choice", param="functions")
    body.check_end()
    limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    options = options_of(body, defaults, limit)
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise APIError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if body.response_format is not None and body.response_format.type != "text":
        if not options.keys().isdisjoint(("schema", "grammar", "regex")):
            raise APIError(400, "an answer has one form: leave all but response_format out", param="response_format")
        options["schema"] = _schema(body.response_format)
    options["template_variables"] = template_variables(body, defaults)
    if body.thinking_budget_tokens is not None:
        options["max_thought_tokens"] = None if body.thinking_budget_tokens < 0 else body.thinking_budget_tokens
    if body.parse_special is not None:
        options["parse_special"] = body.parse_special
    if body.tools:
        tools, options["tool_choice"] = _choice_of(body.tool_choice, body.tools)
        options["tools"] = [tool.model_dump(exclude_none=True) for tool in tools]
        options["parallel_tools"] = body.parallel_tool_calls is not False
    elif body.tool_choice not in (None, "none", "auto"):
        raise APIError(400, "tool_choice wants a tool called, and there are no tools", param="tool_choice")
    return options


def _choice_of(choice: str | NamedTool | AllowedTools | None, tools: Sequence[Tool]) -> tuple[Sequence[Tool], str]:
    """The functions that may be called, and the engine's choice among them. Raises APIError."""
    if isinstance(choice, NamedTool):
        return tools, choice.function.name
    if not isinstance(choice, AllowedTools):
        return tools, "required" if choice == "any" else choice or "auto"
    names = {tool.function.name for tool in choice.allowed_tools.tools}
    if unknown := names - {tool.function.name for tool in tools}:
        raise APIError(400, f"tool_choice allows {min(unknown)!r}, which is none of the tools", param="tool_choice")
    return [tool for tool in tools if tool.function.name in names], choice.allowed_tools.mode


def template_variables(body: ThoughtControl, defaults: Options) -> dict[str, Any]:
    """Variables of the chat template. A request that says anything of thinking gets none of the defaults."""
    from edgeinfer.engine.requests.request import thinking_variables

    given, effort, thinks = body.chat_template_kwargs or {}, body.reasoning_effort, body.enable_thinking
    says = effort is not None or thinks is not None or not given.keys().isdisjoint(thinking_variables(True, "high"))
    variables = {} if says else dict(defaults.get("template_variables", {}))
    return _dates() | variables | thinking_variables(thinks, effort) | given


def _dates() -> dict[str, str]:
    """Today's date under the names that templates ask for, as llama-server gives it.

    It has no time of day: what was read before could not be used again.
    """
    today = datetime.now()
    return {"date_string": today.strftime("%d %b %Y"), "datetime": today.strftime("%b %d %Y")}


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
