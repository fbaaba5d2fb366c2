"""Request bodies of llama-server's own POST /completion, and their conversion to prompts and engine options.

In: JSON. Out: a validated request, prompts as tokens and tiles of images, options. Fields that change no answer
(`cache_prompt`, `n_keep`) are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from edgeinfer.app.server.dialects import Whole, sampler_names
from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.prompt_images import DATA, TEXT, marked_prompt
from edgeinfer.app.server.requests import NO_LIMIT, Sampling, options_of

if TYPE_CHECKING:
    from edgeinfer.app.server.request_images import RequestImages
    from edgeinfer.engine.llm import LLM
    from edgeinfer.engine.requests.module_prompts import PromptPiece
    from edgeinfer.engine.requests.request import Options

MOST_PROMPTS = 64
MOST_MS = 1 << 31
JOINING = "infill"
"""A sampler that editors name; it joins tokens that begin alike, and answers are much the same without it."""
Milliseconds = Annotated[float, Field(ge=-1, le=MOST_MS, allow_inf_nan=False)]


class NativeSampling(Sampling):
    """llama-server's fields of an answer."""

    max_tokens: Whole | None = None
    return_tokens: bool = False
    t_max_predict_ms: Milliseconds = 0
    n_indent: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    response_fields: Annotated[list[str], Field(max_length=100)] | None = None

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer; NO_LIMIT: none, None: not said."""
        return self.max_tokens if self.n_predict is None else self.n_predict


class NativeRequest(NativeSampling):
    """POST /completion. `prompt`: a text, tokens, texts and tokens in one list, a text with images, or a list of these.

    A text with images: see `prompt_images`.
    """

    prompt: Any


def native_options(body: NativeSampling, defaults: Options, llm: LLM) -> Options:
    """The engine options of a request; an answer of no tokens is one of one token, which is not shown."""
    plain = body.model_copy(update={"n_predict": None})  # it is seen to here
    if body.samplers is not None:
        plain.samplers = [name for name in sampler_names(body.samplers) if name != JOINING]
    options = options_of(plain, defaults, None if body.limit is None else body.limit or 1)
    return llm.prompts.with_tokens(options)


def is_several(prompt: Any) -> bool:
    """Whether a prompt is a list of prompts: a list with numbers is one."""
    return isinstance(prompt, list) and not any(isinstance(part, int) for part in prompt)


def prompts_of(value: Any, llm: LLM, images: RequestImages) -> list[list[PromptPiece]]:
    """The tokens of each prompt of a request, with tiles of images among them. Raises APIError, BadImage."""
    several = is_several(value)
    if several and not value:
        raise APIError(400, "prompt is an empty list", param="prompt")
    places = [(f"prompt[{at}]", each) for at, each in enumerate(value)] if several else [("prompt", value)]
    prompts = [_pieces(prompt, place, llm, images) for place, prompt in places]
    if len(prompts) > MOST_PROMPTS:
        raise APIError(400, f"{len(prompts)} prompts are too many; {MOST_PROMPTS} are the most", param="prompt")
    return prompts


def _pieces(prompt: Any, place: str, llm: LLM, images: RequestImages) -> list[PromptPiece]:
    """One prompt: a text with or without images, or texts and tokens one after the other. Raises APIError, BadImage."""
    if isinstance(prompt, dict):
        if prompt.get(DATA) is not None:
            return [*marked_prompt(prompt, place).pieces(llm, images)]
        prompt = prompt.get(TEXT)
    parts = prompt if isinstance(prompt, list) else [prompt]
    tokens: list[int] = []
    for number, part in enumerate(parts):
        if isinstance(part, str):
            tokens += _text_tokens(part, llm, is_first=not number)
        elif isinstance(part, int) and not isinstance(part, bool):
            tokens.append(part)
        else:
            raise APIError(400, "a prompt is a text, or a list of texts and tokens", param="prompt")
    return [*llm.prompts.checked(tokens)]


def _text_tokens(text: str, llm: LLM, *, is_first: bool) -> list[int]:
    """The tokens of a part of a prompt: the first has what begins a text, none has what ends one."""
    tokens = llm.tokenize(text, add_special=is_first)
    return tokens[:-1] if is_first and llm.prompts.tokenizer.vocabulary.add_eos else tokens


assert NO_LIMIT == -1  # as in llama-server
