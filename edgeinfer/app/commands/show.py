"""`edgeinfer show`: what is known of a model on this computer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.command_line.shell_words import model_names
from edgeinfer.app.plain_text import echo
from edgeinfer.errors import BadGGUF, EdgeInferError

if TYPE_CHECKING:
    from pathlib import Path

    from edgeinfer.app.catalogue.own_projector import OwnProjector
    from edgeinfer.models.gguf import Metadata, TensorInfo
    from edgeinfer.models.store import LocalModel

TOKENS, TEMPLATE = "tokenizer.ggml.tokens", "tokenizer.chat_template"
LICENCE_KEYS = ("general.license.name", "general.license")


def show(
    name: Annotated[
        str, typer.Argument(help="A model, as edgeinfer ls calls it, or the path of one.", autocompletion=model_names)
    ],
    template: Annotated[bool, typer.Option("--template", help="Print the chat template and nothing else.")] = False,
    as_json: Json = False,
) -> None:
    """Show the architecture, sizes, licence and path of a model.

    Only the header of its file is read.
    """
    from edgeinfer.app.plain_text import printable
    from edgeinfer.app.removal import bundle_bytes
    from edgeinfer.models.store import ModelStore
    from edgeinfer.models.text.template_choice import built_in_names

    store = ModelStore()
    model = store.find(name)
    facts = model_facts(model)
    if template:
        if facts.template is None:
            raise EdgeInferError(
                f"{model.name} has no chat template; chats with it are put in a usual form, or in that of "
                f"--chat-template NAME: {', '.join(built_in_names())}"
            )
        echo(printable(facts.template))
        return
    used_at, packed_bytes = store.used_at(model), bundle_bytes(model)
    if as_json:
        echo(json.dumps(_record(model, facts, used_at, packed_bytes)))
        return
    for line in _lines(model, facts, used_at, packed_bytes):
        echo(line)


def _record(model: LocalModel, facts: ModelFacts, used_at: datetime | None, packed_bytes: int) -> dict[str, object]:
    return {
        "name": model.name,
        "title": facts.title,
        "arch": facts.architecture,
        "n_params": facts.n_params,
        "quant": facts.quant,
        "tensor_bytes": dict(facts.tensor_types),
        "size_bytes": model.nbytes,
        "head_bytes": facts.head_bytes,
        "bundle_bytes": packed_bytes,
        "n_context": facts.n_context,
        "tokenizer": facts.tokenizer,
        "n_vocab": facts.n_tokens,
        "reads_images": facts.projector is not None and facts.projector.reads_images,
        "reads_sound": facts.projector is not None and facts.projector.reads_sound,
        "projector": None if facts.projector is None else _projector_record(facts.projector),
        "has_template": facts.template is not None,
        "chosen_template": chosen_template(),
        "sampling": dict(facts.sampling),
        "stop": list(facts.stops),
        "adapters": [str(path) for path in facts.adapters],
        "system": facts.system or None,
        "unused_parameters": list(facts.unused),
        "licence": facts.licence,
        "licence_link": facts.licence_link,
        "from": model.place,
        "source": model.source,
        "paths": [str(path) for path in model.paths],
        "sha256": model.sha256,
        "last_used": None if used_at is None else used_at.isoformat(),
    }


def _projector_record(projector: OwnProjector) -> dict[str, object]:
    return {
        "path": str(projector.path),
        "size_bytes": projector.nbytes,
        "type": projector.kind or None,
        "why_not": projector.why_not or None,
    }


def _lines(model: LocalModel, facts: ModelFacts, used_at: datetime | None, packed_bytes: int) -> list[str]:
    """For people: a fact a line, without those that are not known."""
    from edgeinfer.app.plain_text import table_lines
    from edgeinfer.text_values import size_text

    formats = ", ".join(f"{name} {size_text(nbytes)}" for name, nbytes in facts.tensor_types.items())
    files = "" if len(model.paths) == 1 else f" in {len(model.paths)} files"
    rows = (
        ("name", model.name),
        ("title", facts.title),
        ("architecture", facts.architecture),
        ("parameters", None if facts.n_params is None else _count(facts.n_params)),
        ("quantisation", facts.quant if not formats else f"{facts.quant} ({formats})"),
        ("size", f"{size_text(model.nbytes)}{files}"),
        ("trained head", facts.head_bytes and f"{size_text(facts.head_bytes)} of it (--spec off leaves it out)"),
        ("bundle file", size_text(packed_bytes) if packed_bytes else None),
        ("context", None if facts.n_context is None else f"{facts.n_context:,} tokens"),
        ("tokenizer", facts.tokenizer),
        ("vocabulary", None if facts.n_tokens is None else f"{facts.n_tokens:,} tokens"),
        (f"reads {(facts.projector and facts.projector.media) or 'images'}", facts.projector and facts.projector.text),
        ("chat template", _template_word(facts)),
        ("used instead", chosen_template()),
        ("sampling", ", ".join(f"{name} {value:g}" for name, value in facts.sampling.items())),
        ("stops at", " ".join(map(repr, facts.stops))),
        *(("adapter", str(path)) for path in facts.adapters),
        ("system prompt", facts.system and " ".join(facts.system.split())),
        ("not used", ", ".join(facts.unused) and f"{', '.join(facts.unused)} of Ollama's parameters"),
        ("licence", " ".join(text for text in (facts.licence, facts.licence_link) if text)),
        ("from", model.place),
        ("source", model.source),
        *(("path", str(path)) for path in model.paths),
        ("last used", "not known" if used_at is None else f"{used_at:%Y-%m-%d %H:%M}"),
    )
    return table_lines([(label, str(text)) for label, text in rows if text])


def _template_word(facts: ModelFacts) -> str:
    """Whether there is a chat template, and what it is like if it is in a language that is not read."""
    from edgeinfer.models.text.template_choice import alike

    if facts.template is not None:
        return "yes (--template prints it)"
    found = alike(facts.kept_template)
    return "no" if found is None else f"{found.origin}, as Ollama's writes"


def chosen_template() -> str | None:
    """The chat template that the settings choose in place of any model's own, by name or path."""
    from edgeinfer.settings import load_settings

    load = load_settings().load
    chosen = load.chat_template_file or load.chat_template
    return None if chosen is None else str(chosen)


def _count(n_params: int) -> str:
    """How many parameters: 135 M, 7.6 B."""
    return f"{n_params / 1e9:.1f} B" if n_params >= 1e9 else f"{n_params / 1e6:.1f} M"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model; None if its files do not say.

    `n_params`: of all tensors; `tensor_types`: bytes by tensor format; `sampling`: the author's values of options, and
    those of Ollama's name for the file, with `stops`, texts that end its answers, `adapters` that are added to it,
    `system`, the system prompt of chats without their own, `kept_template` in Go's language, and `unused`, parameters
    not followed. `head_bytes`: of the trained head that drafts; 0: none.
    `projector`: with which it reads images and sound.
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
    sampling: Mapping[str, float]
    stops: tuple[str, ...] = ()
    adapters: tuple[Path, ...] = ()
    system: str = ""
    kept_template: str = ""
    unused: tuple[str, ...] = ()
    head_bytes: int = 0
    projector: OwnProjector | None = None


def model_facts(model: LocalModel) -> ModelFacts:
    """What the files of a model say. Raises BadGGUF, ModelNotFound, UnsupportedModel."""
    from edgeinfer.models.decoder_folder import is_decoder_folder, open_folder
    from edgeinfer.models.gguf import GGUFFile

    if is_decoder_folder(model.path):
        with open_folder(model.path) as folder:
            return _facts(model, folder.metadata, {})
    with GGUFFile.open(model.path) as file:
        return _facts(model, file.metadata, file.tensors)


def _facts(model: LocalModel, metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> ModelFacts:
    from edgeinfer.app.catalogue.own_projector import own_projector
    from edgeinfer.models.author_sampling import author_sampling
    from edgeinfer.models.file_facts import quant_of_type
    from edgeinfer.models.file_names import quant_of
    from edgeinfer.models.load import head_bytes
    from edgeinfer.models.ollama_params import ollama_params

    ollama = ollama_params(model.path, model.source)
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
        n_tokens=_token_count(metadata),
        template=_text(metadata, TEMPLATE),
        licence=next((text for key in LICENCE_KEYS if (text := _text(metadata, key))), None),
        licence_link=_text(metadata, "general.license.link"),
        sampling={**author_sampling(metadata), **ollama.sampling},
        stops=ollama.stops,
        adapters=ollama.adapters,
        system=ollama.system,
        kept_template=ollama.template,
        unused=ollama.unused,
        head_bytes=head_bytes(metadata, tensors),
        projector=own_projector(model.path, model.source),
    )


def _text(metadata: Metadata, key: str) -> str | None:
    """A text; None if it is missing or not text."""
    value = metadata.get(key)
    return value if isinstance(value, str) and value else None


def _integer(metadata: Metadata, key: str) -> int | None:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _token_count(metadata: Metadata) -> int | None:
    """Number of tokens in the vocabulary."""
    try:
        return len(metadata.strings(TOKENS))
    except BadGGUF:
        return None


COMMAND = Command(show)
