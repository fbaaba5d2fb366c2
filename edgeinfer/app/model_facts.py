"""Everything that a model's files say about it, without reading a weight.

In: a model on this machine. Out: `ModelFacts`. Reads headers (for a folder with an ONNX decoder, its settings).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edgeinfer.errors import BadGGUF
from edgeinfer.models.decoder_folder import is_decoder_folder, open_folder
from edgeinfer.models.file_facts import quant_of_type
from edgeinfer.models.file_names import quant_of
from edgeinfer.models.gguf import GGUFFile, Metadata, TensorInfo
from edgeinfer.models.store import LocalModel

TOKENS, TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.chat_template"
LICENCE_KEYS = ("general.license.name", "general.license")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model; None if its files do not say.

    `n_params`: of all tensors; `tensor_types`: bytes by tensor format.
    """

    architecture: str | None
    title: str | None
    n_params: int | None
    quant: str | None
    tensor_types: Mapping[str, int]
    n_context: int | None
    tokenizer: str | None
    n_tokens: int | None
    template: str | None
    licence: str | None
    licence_link: str | None


def model_facts(model: LocalModel) -> ModelFacts:
    """What the files of a model say. Raises BadGGUF, ModelNotFound, UnsupportedModel."""
    if is_decoder_folder(model.path):
        with open_folder(model.path) as folder:
            return _facts(model, folder.metadata, {})
    with GGUFFile.open(model.path) as file:
        return _facts(model, file.metadata, file.tensors)


def _facts(model: LocalModel, metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> ModelFacts:
    types: dict[str, int] = {}
    for tensor in tensors.values():
        types[tensor.type_name] = types.get(tensor.type_name, 0) + tensor.nbytes
    largest_first = dict(sorted(types.items(), key=lambda each: -each[1]))
    architecture = _text(metadata, "general.architecture")
    kinds = [_text(metadata, f"tokenizer.ggml.{key}") for key in ("model", "pre")]
    return ModelFacts(
        architecture=architecture,
        title=_text(metadata, "general.name"),
        n_params=sum(math.prod(tensor.shape) for tensor in tensors.values()) or None,
        quant=quant_of_type(metadata) or quant_of(model.name) or next(iter(largest_first), None),
        tensor_types=largest_first,
        n_context=_integer(metadata, f"{architecture}.context_length"),
        tokenizer=", ".join(kind for kind in kinds if kind) or None,
        n_tokens=_count(metadata),
        template=_text(metadata, TEMPLATE),
        licence=next((text for key in LICENCE_KEYS if (text := _text(metadata, key))), None),
        licence_link=_text(metadata, "general.license.link"),
    )


def _text(metadata: Metadata, key: str) -> str | None:
    """A text; None if it is missing or not text."""
    value = metadata.get(key)
    return value if isinstance(value, str) and value else None


def _integer(metadata: Metadata, key: str) -> int | None:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _count(metadata: Metadata) -> int | None:
    """Number of tokens in the vocabulary."""
    try:
        return len(metadata.strings(TOKENS))
    except BadGGUF:
        return None
