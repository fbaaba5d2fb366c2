"""`edgeinfer tokenize`: text to token ids."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from edgeinfer.app.command_line.options import Command, Given, Json, takes_settings
from edgeinfer.app.plain_text import echo


@takes_settings("model")
def tokenize(
    given: Given,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="Text; standard input if omitted.")] = None,
    no_special: Annotated[bool, typer.Option("--no-special", help="Do not add BOS and EOS tokens.")] = False,
    as_json: Json = False,
) -> None:
    """Convert text to token ids.

    A model file with only a vocabulary is enough, and so is a folder with an ONNX decoder and tokenizer.json. Text that
    spells a special token is that token where the model's own tokenizer has it so, with `--no-special` too.
    """
    from edgeinfer.app.command_line.options import argument_or_stdin
    from edgeinfer.app.opening.model_choice import choose_model
    from edgeinfer.engine.requests.texts import tokenizer_of
    from edgeinfer.settings import load_settings

    chosen = choose_model(load_settings(given))
    tokenizer = tokenizer_of(chosen.path)
    tokens = list(tokenizer.encode(argument_or_stdin(text), add_special=not no_special))
    pieces = list(tokenizer.pieces(tokens))
    if as_json:
        echo(json.dumps({"tokens": tokens, "pieces": pieces}, ensure_ascii=False))
        return
    echo(" ".join(map(str, tokens)))


COMMAND = Command(tokenize)
