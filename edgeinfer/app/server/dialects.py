"""Fields of other servers' requests that say what ours say by another name, or what ours cannot: obeyed or refused.

In: fields of llama-server, vLLM, Ollama and transformers. Out: engine options; APIError names a field that would change
an answer in a way that edgeinfer does not support. Knows no routes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgeinfer.app.server.errors import APIError, unsupported

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options

MOST_CHOICES_OF_TEXT = 1000
Whole = Annotated[int, Field(ge=-1, lt=1 << 31)]
Factor = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
Pattern = Annotated[str, Field(max_length=1 << 20)]
Texts = Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES_OF_TEXT)]
Schema = dict[str, Any] | Pattern

NEUTRAL: Mapping[str, object] = MappingProxyType(
    {
        "typical_p": 1,
        "typ_p": 1,
        "tfs_z": 1,
        "length_penalty": 1,
        "mirostat": 0,
        "xtc_probability": 0,
        "dry_multiplier": 0,
        "dynatemp_range": 0,
        "top_n_sigma": -1,
        "adaptive_target": -1,
        "top_a": 0,
        "min_tokens": 0,
        "use_beam_search": False,
        "stop_token_ids": [],
        "bad_words": [],
        "allowed_token_ids": [],
        "include_stop_str_in_output": False,
        "skip_special_tokens": True,
        "truncate_prompt_tokens": None,
        "chat_template": None,
    }
)
"""Fields of other servers that edgeinfer lacks, with the values at which they change nothing."""
ORDER = ("penalties", "top_k", "top_p", "min_p", "temperature")
"""The samplers, in the order in which they are applied; llama-server's usual one."""
OFF: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        "top_k": {"top_k": 0},
        "top_p": {"top_p": 1.0},
        "min_p": {"min_p": 0.0},
        "temperature": {"temperature": 1.0},
    }
)
LETTERS: Mapping[str, str] = MappingProxyType(
    {"e": "penalties", "k": "top_k", "p": "top_p", "m": "min_p", "t": "temperature"}
    | {"d": "dry", "y": "typ_p", "x": "xtc", "s": "top_n_sigma", "a": "adaptive_p", "i": "infill"}
)
WITHOUT_EFFECT = frozenset({"dry", "typ_p", "typical_p", "xtc", "top_n_sigma", "tfs_z", "adaptive_p"})
"""Samplers that do nothing at the only values that are taken of them."""


class StructuredOutputs(BaseModel):
    """vLLM's description of an answer's form: one of these."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)

    json_: Schema | None = Field(default=None, alias="json")
    regex: Pattern | None = None
    choice: Texts | None = None
    grammar: Pattern | None = None
    json_object: bool | None = None


class Dialects(BaseModel):
    """Fields of other servers.

    `n_probs`: log probabilities of this many likely tokens with each token, in llama-server's form; with
    `post_sampling_probs` probabilities of those that could have been drawn. `id_slot`: which slot keeps the name of
    what the answer leaves in the cache. `return_progress`, `timings_per_token`: told in streams. `ignore_eos`: the
    answer goes on to its limit.
    """

    model_config = ConfigDict(extra="ignore")

    n_predict: Whole | None = None
    repeat_last_n: Whole | None = None
    n_probs: Annotated[int, Field(ge=0, le=20)] = 0
    post_sampling_probs: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    id_slot: Whole | None = None
    repetition_penalty: Factor | None = None
    guided_json: Schema | None = None
    guided_regex: Pattern | None = None
    guided_choice: Texts | None = None
    guided_grammar: Pattern | None = None
    structured_outputs: StructuredOutputs | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    keep_alive: float | str | None = None
    samplers: list[str] | Annotated[str, Field(max_length=50)] | None = None
    typical_p: float | None = None
    typ_p: float | None = None
    tfs_z: float | None = None
    length_penalty: float | None = None
    mirostat: int | None = None
    xtc_probability: float | None = None
    dry_multiplier: float | None = None
    dynatemp_range: float | None = None
    top_n_sigma: float | None = None
    adaptive_target: float | None = None
    top_a: float | None = None
    min_tokens: int | None = None
    use_beam_search: bool | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    chat_template: str | None = None


def check_dialects(body: Dialects) -> None:
    """Raises APIError for a field that cannot be obeyed."""
    for name, neutral in NEUTRAL.items():
        value = getattr(body, name)
        is_off = value is None or value == neutral or (neutral == -1 and value <= 0)
        if not is_off:
            raise unsupported(f"edgeinfer has no {name}: leave it out, or set it to {json.dumps(neutral)}", name)
    if body.keep_alive is not None:
        raise unsupported(
            "this route has no keep_alive: models stay loaded as `edgeinfer serve --idle-unload` says", "keep_alive"
        )


def form_options(body: Dialects) -> Options:
    """The form of the answer: a schema, a grammar, or a regular expression. Raises APIError if there are several."""
    told = body.structured_outputs or StructuredOutputs()
    schemas: dict[str, Any] = {
        "guided_json": body.guided_json,
        "format": {"json": True, "": None}.get(body.format) if isinstance(body.format, str) else body.format,
        "structured_outputs.json": told.json_,
        "structured_outputs.json_object": True if told.json_object else None,
    }
    grammars = {"guided_grammar": body.guided_grammar, "structured_outputs.grammar": told.grammar}
    patterns = {
        "guided_regex": body.guided_regex,
        "structured_outputs.regex": told.regex,
        "guided_choice": _one_of(body.guided_choice),
        "structured_outputs.choice": _one_of(told.choice),
    }
    found: dict[str, Options] = {name: {"schema": value} for name, value in schemas.items() if value is not None}
    found |= {name: {"grammar": value} for name, value in grammars.items() if value is not None}
    found |= {name: {"regex": value} for name, value in patterns.items() if value is not None}
    if len(found) > 1:
        first, second = list(found)[:2]
        raise APIError(400, f"an answer has one form: leave {first} or {second} out", param=second)
    for options in found.values():
        return options
    return {}


def _one_of(texts: Sequence[str] | None) -> str | None:
    """A regular expression that matches one of these texts."""
    return None if texts is None else "|".join(f"({re.escape(text)})" for text in texts)


def sampler_names(samplers: Sequence[str] | str) -> list[str]:
    """The names of samplers, which may be given as letters."""
    return [LETTERS.get(letter, letter) for letter in samplers] if isinstance(samplers, str) else list(samplers)


def sampler_options(samplers: Sequence[str] | str) -> Options:
    """The options at which samplers that are not named do nothing. Raises APIError for an order that is not ours."""
    used = [name for name in sampler_names(samplers) if name not in WITHOUT_EFFECT]
    if unknown := [name for name in used if name not in ORDER]:
        raise unsupported(f"edgeinfer has no sampler {unknown[0]!r}; there are: {', '.join(ORDER)}", "samplers")
    if used != [name for name in ORDER if name in used]:
        raise unsupported(f"samplers are applied in this order: {', '.join(ORDER)}", "samplers")
    options: Options = {}
    for name in ORDER:
        if name not in used:
            options |= OFF[name]  # type: ignore[typeddict-item]
    return options
