"""Request bodies of llama-server's own POST /completion, and their conversion to prompts and engine options.

In: JSON. Out: a validated request, prompts as texts or tokens, options. Fields of samplers that edgeinfer does not have
are refused unless they are off; those that change no answer (`id_slot`, `cache_prompt`, `n_keep`) are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.requests import NO_LIMIT, Sampling, options_of

if TYPE_CHECKING:
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.requests.request import Options

MOST_PROMPTS = 64
MOST_MS = 1 << 31
OFF: Mapping[str, float] = MappingProxyType(
    {
        "dynatemp_range": 0,
        "xtc_probability": 0,
        "typical_p": 1,
        "top_n_sigma": -1,
        "dry_multiplier": 0,
        "mirostat": 0,
        "adaptive_target": -1,
    }
)
"""Fields of samplers that edgeinfer does not have, with the value at which each is off."""
ORDER = ("penalties", "top_k", "top_p", "min_p", "temperature")
"""The samplers that edgeinfer has, in the order in which it applies them."""
ABSENT: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        "top_k": {"top_k": 0},
        "top_p": {"top_p": 1.0},
        "min_p": {"min_p": 0.0},
        "temperature": {"temperature": 1.0},
    }
)
"""The options that turn a sampler off."""
WITHOUT_EFFECT = frozenset({"dry", "top_n_sigma", "typ_p", "typical_p", "xtc", "adaptive_p", "infill"})
"""Samplers that are off, as their fields are; and infill's, which only joins tokens with a common beginning."""
LETTERS = MappingProxyType(
    {
        "e": "penalties",
        "k": "top_k",
        "p": "top_p",
        "m": "min_p",
        "t": "temperature",
        "d": "dry",
        "s": "top_n_sigma",
        "y": "typ_p",
        "x": "xtc",
        "a": "adaptive_p",
        "i": "infill",
    }
)

Bias = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)] | bool
Biases = dict[str, Bias] | Annotated[list[tuple[int | str, Bias]], Field(max_length=1 << 20)]
Whole = Annotated[int, Field(ge=-1, lt=1 << 31)]
Milliseconds = Annotated[float, Field(ge=-1, le=MOST_MS, allow_inf_nan=False)]


class NativeSampling(Sampling):
    """llama-server's fields of an answer. `biases`: its `logit_bias`, which may name texts and be a list of pairs."""

    n_predict: Whole | None = None
    max_tokens: Whole | None = None
    n_probs: Annotated[int, Field(ge=0, le=20)] = 0
    post_sampling_probs: bool = False
    return_tokens: bool = False
    ignore_eos: bool | None = None
    repeat_last_n: Whole | None = None
    t_max_predict_ms: Milliseconds = 0
    n_indent: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    samplers: list[str] | Annotated[str, Field(max_length=50)] | None = None
    biases: Biases | None = None
    response_fields: Annotated[list[str], Field(max_length=100)] | None = None
    return_progress: bool = False
    timings_per_token: bool = False
    id_slot: Whole | None = None
    cache_prompt: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _other_samplers(cls, body: Any) -> Any:
        """Set biases apart. Raises PydanticCustomError for a sampler that edgeinfer does not have."""
        if not isinstance(body, dict):
            return body
        body = {("biases" if name == "logit_bias" else name): value for name, value in body.items()}
        for name, off in OFF.items():
            value = body.get(name)
            is_off = value is None or value == off or (off < 0 and isinstance(value, int | float) and value <= 0)
            if not is_off:
                raise PydanticCustomError("sampler", f"edgeinfer does not sample with {name}: leave it out")
        return body

    @field_validator("samplers", mode="before")
    @classmethod
    def _spelled(cls, samplers: Any) -> Any:
        """The names of samplers given as letters."""
        return [LETTERS.get(each, each) for each in samplers] if isinstance(samplers, str) else samplers

    @field_validator("samplers")
    @classmethod
    def _obeyed(cls, samplers: Sequence[str] | None) -> Sequence[str] | None:
        """Raises PydanticCustomError for samplers in another order than edgeinfer's, and for unknown ones."""
        own = [name for name in samplers or () if name not in WITHOUT_EFFECT]
        if unknown := next((name for name in own if name not in ORDER), None):
            raise PydanticCustomError("samplers", f"there is no sampler {unknown!r}; there are: {', '.join(ORDER)}")
        if own != [name for name in ORDER if name in own]:
            raise PydanticCustomError("samplers", f"the order is fixed: {', '.join(ORDER)}; some may be left out")
        return samplers

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer; NO_LIMIT: none, None: not said."""
        return self.max_tokens if self.n_predict is None else self.n_predict


class NativeRequest(NativeSampling):
    """POST /completion. `prompt`: a text, tokens, texts and tokens in one list, or a list of such prompts."""

    prompt: Any


def native_options(body: NativeSampling, defaults: Options, llm: LLM) -> Options:
    """The engine options of a request; an answer of no tokens is one of one token, which is not shown."""
    plain = body.model_copy(update=dict.fromkeys(("n_predict", "samplers", "ignore_eos")))  # they are seen to here
    options = options_of(plain, defaults, None if body.limit is None else body.limit or 1)
    for name in ORDER if body.samplers is not None else ():
        if name not in (body.samplers or ()):
            options.update(ABSENT[name])  # type: ignore[typeddict-item]
    if body.repeat_last_n is not None:
        options["penalty_window"] = body.repeat_last_n
    bias = {} if body.biases is None else _biases(body.biases, llm)
    if body.ignore_eos:
        bias |= dict.fromkeys(sorted(llm.prompts.tokenizer.vocabulary.end_of_generation), -inf)
    if bias:
        options["logit_bias"] = bias
    if body.n_probs:
        if body.post_sampling_probs:
            raise APIError(
                400, "edgeinfer knows no probabilities after sampling: leave it out", None, "post_sampling_probs"
            )
        options["logprobs"] = body.n_probs
    return options


def _biases(given: Biases, llm: LLM) -> dict[int | str, float]:
    """The bias of each token, named by its number or by a text with it; False forbids a token."""
    pairs = given.items() if isinstance(given, dict) else given
    found: dict[int | str, float] = {}
    for key, bias in pairs:
        value = bias if not isinstance(bias, bool) else 0.0 if bias else -inf
        found |= dict.fromkeys([key] if isinstance(key, int) else _tokens_of(key, llm), value)
    return found


def _tokens_of(text: str, llm: LLM) -> list[int]:
    """A token by its number, or the tokens of a text."""
    return [int(text)] if text.isdecimal() else llm.tokenize(text, add_special=False)


def is_several(prompt: Any) -> bool:
    """Whether a prompt is a list of prompts: a list with numbers is one."""
    return isinstance(prompt, list) and not any(isinstance(part, int) for part in prompt)


def prompts_of(value: Any, llm: LLM) -> list[list[int]]:
    """The tokens of each prompt of a request. Raises APIError."""
    several = is_several(value)
    if several and not value:
        raise APIError(400, "prompt is an empty list", param="prompt")
    prompts = [_tokens(prompt, llm) for prompt in (value if several else [value])]
    if len(prompts) > MOST_PROMPTS:
        raise APIError(400, f"{len(prompts)} prompts are too many; {MOST_PROMPTS} are the most", param="prompt")
    return prompts


def _tokens(prompt: Any, llm: LLM) -> list[int]:
    """The tokens of one prompt: a text, or texts and tokens one after the other. Raises APIError."""
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            raise APIError(400, "edgeinfer reads text only: leave multimodal_data out", param="prompt")
        prompt = prompt.get("prompt_string")
    parts = prompt if isinstance(prompt, list) else [prompt]
    tokens: list[int] = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            tokens += _text_tokens(part, llm, is_first=not number)
        elif isinstance(part, int) and not isinstance(part, bool):
            tokens.append(part)
        else:
            raise APIError(400, "a prompt is a text, or a list of texts and tokens", param="prompt")
    return llm.prompts.checked(tokens)


def _text_tokens(text: str, llm: LLM, *, is_first: bool) -> list[int]:
    """The tokens of a part of a prompt: the first has what begins a text, none has what ends one."""
    tokens = llm.tokenize(text, add_special=is_first)
    return tokens[:-1] if is_first and llm.prompts.tokenizer.vocabulary.add_eos else tokens


assert NO_LIMIT == -1  # as in llama-server
