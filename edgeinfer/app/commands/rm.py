"""`edgeinfer rm`: delete models, or take them off the list where their files are not ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.command_line.shell_words import model_names
from edgeinfer.app.plain_text import echo, harmless
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.app.removal import Removal, Removed
    from edgeinfer.models.store import LocalModel


def rm(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Model names as listed by edgeinfer ls.", autocompletion=model_names),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Delete models and their derived files.

    Files that other programs or you put elsewhere stay where they are; such a model is taken off the list.
    """
    from edgeinfer.app.removal import planned_removal, remove_model
    from edgeinfer.models.store import ModelStore

    store = ModelStore()
    planned = list(
        {removal.model.path: removal for removal in (planned_removal(store, name) for name in names)}.values()
    )
    for removal in planned:
        _require_unused(removal.model)
    if not yes:
        _ask([removal for removal in planned if removal.deletes_file])
    removed = [remove_model(store, removal.model.name) for removal in planned]
    if as_json:
        echo(json.dumps({"removed": [_record(each) for each in removed]}))
        return
    for each in removed:
        echo(each.text)


def _require_unused(model: LocalModel) -> None:
    """Raises EdgeInferError, naming the processes, where a model is open."""
    from edgeinfer.engine.running import users_of

    users = users_of(model.paths)
    if users:
        named = ", ".join(f"{each.command} (process {each.pid})" for each in users)
        raise EdgeInferError(f"{model.name} is in use by {named}; end that first, then remove the model")


def _ask(deleted: Sequence[Removal]) -> None:
    """Ask before files are deleted. Raises EdgeInferError for a no, and where nobody can answer."""
    if not deleted:
        return
    what = ", ".join(removal.question for removal in deleted)
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise EdgeInferError(f"this would delete {what}; without a terminal to ask at, say --yes")
    if not typer.confirm(harmless(f"Delete {what}?"), default=False, err=True):
        raise EdgeInferError("nothing was deleted")


def _record(removed: Removed) -> dict[str, object]:
    return {
        "name": removed.model.name,
        "path": str(removed.model.path),
        "deleted_file": removed.stays_at is None,
        "freed_bytes": removed.freed_bytes,
    }


COMMAND = Command(rm)
