"""`edgeinfer show`: what is known of a model on this computer."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.command_line.shell_words import model_names
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.app.model_facts import ModelFacts
    from edgeinfer.models.store import LocalModel


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
    from edgeinfer.app.model_facts import model_facts
    from edgeinfer.app.plain_text import printable
    from edgeinfer.app.removal import bundle_bytes
    from edgeinfer.models.store import ModelStore

    store = ModelStore()
    model = store.find(name)
    facts = model_facts(model)
    if template:
        if facts.template is None:
            raise EdgeInferError(f"{model.name} has no chat template; chats with it are put in a usual form")
        typer.echo(printable(facts.template))
        return
    used_at, packed_bytes = store.used_at(model), bundle_bytes(model)
    if as_json:
        typer.echo(json.dumps(_record(model, facts, used_at, packed_bytes)))
        return
    for line in _lines(model, facts, used_at, packed_bytes):
        typer.echo(line)


def _record(model: LocalModel, facts: ModelFacts, used_at: datetime | None, packed_bytes: int) -> dict[str, object]:
    return {
        "name": model.name,
        "title": facts.title,
        "arch": facts.architecture,
        "n_params": facts.n_params,
        "quant": facts.quant,
        "tensor_bytes": dict(facts.tensor_types),
        "size_bytes": model.nbytes,
        "bundle_bytes": packed_bytes,
        "n_context": facts.n_context,
        "tokenizer": facts.tokenizer,
        "n_vocab": facts.n_tokens,
        "has_template": facts.template is not None,
        "licence": facts.licence,
        "licence_link": facts.licence_link,
        "from": model.place,
        "source": model.source,
        "paths": [str(path) for path in model.paths],
        "sha256": model.sha256,
        "last_used": None if used_at is None else used_at.isoformat(),
    }


def _lines(model: LocalModel, facts: ModelFacts, used_at: datetime | None, packed_bytes: int) -> list[str]:
    """For people: a fact a line, without those that are not known."""
    from edgeinfer.app.plain_text import table_lines
    from edgeinfer.models.download.space import size_text

    formats = ", ".join(f"{name} {size_text(nbytes)}" for name, nbytes in facts.tensor_types.items())
    files = "" if len(model.paths) == 1 else f" in {len(model.paths)} files"
    rows = (
        ("name", model.name),
        ("title", facts.title),
        ("architecture", facts.architecture),
        ("parameters", None if facts.n_params is None else _count(facts.n_params)),
        ("quantisation", facts.quant if not formats else f"{facts.quant} ({formats})"),
        ("size", f"{size_text(model.nbytes)}{files}"),
        ("bundle file", size_text(packed_bytes) if packed_bytes else None),
        ("context", None if facts.n_context is None else f"{facts.n_context:,} tokens"),
        ("tokenizer", facts.tokenizer),
        ("vocabulary", None if facts.n_tokens is None else f"{facts.n_tokens:,} tokens"),
        ("chat template", "no" if facts.template is None else "yes (--template prints it)"),
        ("licence", " ".join(text for text in (facts.licence, facts.licence_link) if text)),
        ("from", model.place),
        ("source", model.source),
        *(("path", str(path)) for path in model.paths),
        ("last used", "not known" if used_at is None else f"{used_at:%Y-%m-%d %H:%M}"),
    )
    return table_lines([(label, text) for label, text in rows if text])


def _count(n_params: int) -> str:
    """How many parameters: 135 M, 7.6 B."""
    return f"{n_params / 1e9:.1f} B" if n_params >= 1e9 else f"{n_params / 1e6:.1f} M"


COMMAND = Command(show)
