"""`edgeinfer detokenize`: token ids to text."""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated

import typer

from edgeinfer.app.command_line.options import Command, Given, Json, takes_settings
from edgeinfer.errors import EdgeInferError

SHOWN_CHARACTERS = 40


@takes_settings("model")
def detokenize(
    given: Given,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Token ids; standard input if omitted.")] = None,
    as_json: Json = False,
) -> None:
    """Convert token ids to text.

    Ids are separated by spaces, commas or newlines, or are a JSON list, or the output of `tokenize --json`.
    """
    from edgeinfer.app.command_line.options import argument_or_stdin
    from edgeinfer.app.opening.model_choice import choose_model
    from edgeinfer.engine.requests.texts import tokenizer_of
    from edgeinfer.settings import load_settings

    chosen = choose_model(load_settings(given))
    tokenizer = tokenizer_of(chosen.path)
    text = tokenizer.decode(read_ids(argument_or_stdin(" ".join(ids) if ids else None)))
    if as_json:
        typer.echo(json.dumps({"text": text}, ensure_ascii=False))
        return
    typer.echo(text, nl=sys.stdout.isatty())


def read_ids(text: str) -> list[int]:
    """The token ids in `text`. Raises EdgeInferError, showing what is no id."""
    stripped = text.strip()
    if stripped.startswith("{"):
        try:
            return [int(token) for token in json.loads(stripped)["tokens"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise EdgeInferError('a JSON object with token ids looks like {"tokens": [1, 2]}') from None
    ids = []
    for word in re.split(r"[\s,]+", stripped.removeprefix("[").removesuffix("]").strip()):
        if word and not (word.isascii() and word.isdecimal()):
            raise EdgeInferError(f"{word[:SHOWN_CHARACTERS]!r} is not a token id; ids are whole numbers from 0 up")
        if word:
            ids.append(int(word))
    return ids


COMMAND = Command(detokenize)
