"""Which model a command works on, and pulling one with a question when it does not fit.

In: settings and a store. Out: a `LocalModel`. The order: what was asked for (-m, environment, configuration), the model
used last, the starter model. Sources that are not here yet are pulled, with progress on stderr. Opens no model.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from edgeinfer.app.pull_progress import PullProgress
from edgeinfer.errors import DoesNotFit, ModelNotFound, UnsupportedModel
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.models.gguf import Header
    from edgeinfer.models.store import LocalModel, Store


def choose_model(settings: Settings, store: Store | None = None, *, remember: bool = True) -> LocalModel:
    """The model to work on, pulled first if it has to be; noted as the last used one if `remember`.

    Raises ModelNotFound, DownloadFailed, DoesNotFit.
    """
    from edgeinfer.models.store import Store

    store = store or Store()
    wanted = settings.model.model or store.last_used()
    model = _starter(store) if wanted is None else _find_or_pull(store, wanted)
    if remember:
        listed = any(known.path == model.path for known in store.models())
        store.remember(model.name if listed else str(model.path))
    return model


def choose_file(settings: Settings, command: str, instead: str) -> LocalModel:
    """The GGUF file that `command` works on. Raises as `choose_model`, and UnsupportedModel for another kind of model.

    `instead`: what works with such a model.
    """
    from edgeinfer.models.decoder_folder import is_decoder_folder

    found = choose_model(settings, remember=False)
    if is_decoder_folder(found.path):
        raise UnsupportedModel(
            f"{found.path} is a folder with an ONNX decoder, and {command} needs a GGUF file; {instead}"
        )
    return found


def pull_model(store: Store, source: str, *, force: bool = False) -> LocalModel:
    """Pull `source` with progress on stderr; a model that does not fit is fetched only after a yes, or with `force`.

    Raises DownloadFailed, ModelNotFound, BadGGUF, DoesNotFit.
    """
    with PullProgress(source) as progress:

        def approve(header: Header, nbytes: int) -> None:
            progress.pause()
            approve_fit(header, nbytes)

        return store.pull(source, progress=progress, approve=approve, force=force)


def approve_fit(header: Header, nbytes: int) -> None:
    """Let a model through that fits this machine, or runs as its disk allows; ask about others where someone answers.

    Raises DoesNotFit, with the numbers and what would work.
    """
    from edgeinfer.app.fit import check_fits

    try:
        notice = check_fits(header, nbytes)
        if notice is not None:
            typer.echo(f"note: {notice}", err=True)
    except DoesNotFit as refusal:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise DoesNotFit(f"{refusal}; edgeinfer pull --force fetches it all the same") from None
        typer.echo(str(refusal), err=True)
        if not typer.confirm("Fetch it all the same?", default=False, err=True):
            raise DoesNotFit("not fetched; a smaller model or quant would fit") from None


def _starter(store: Store) -> LocalModel:
    """The starter model, under whatever source it came here."""
    from edgeinfer.models.store import STARTER_NAME, STARTER_SOURCE

    try:
        return store.find(STARTER_NAME)
    except ModelNotFound:
        return pull_model(store, STARTER_SOURCE)


def _find_or_pull(store: Store, wanted: str) -> LocalModel:
    """The model called `wanted`; pulled when it is a source with a scheme that is not here yet."""
    from edgeinfer.models.sources import parse_source
    from edgeinfer.models.sources.path import SCHEME

    try:
        return store.find(wanted)
    except ModelNotFound:
        if not SCHEME.match(wanted):
            raise
        parse_source(wanted)
    return pull_model(store, wanted)
