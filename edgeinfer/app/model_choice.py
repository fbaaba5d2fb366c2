"""Which model a command works on, and pulling one with a question when it does not fit.

In: settings and a store. Out: a `LocalModel`. The order: what was asked for (-m, environment, configuration), the model
used last, the starter model. Sources that are not here yet are pulled, which a face shows. Opens no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeinfer.app.terminal_face import TerminalFace
from edgeinfer.errors import ModelNotFound, UnsupportedModel
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.app.opening_face import OpeningFace
    from edgeinfer.models.store import LocalModel, Store


def choose_model(
    settings: Settings, store: Store | None = None, *, remember: bool = True, face: OpeningFace | None = None
) -> LocalModel:
    """The model to work on, pulled first if it has to be; noted as the last used one if `remember`.

    `face`: what shows a pull; None: the terminal. Raises ModelNotFound, DownloadFailed, DoesNotFit.
    """
    from edgeinfer.models.store import Store

    store = store or Store()
    wanted = settings.model.model or store.last_used()
    model = _starter(store, face) if wanted is None else _find_or_pull(store, wanted, face)
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


def pull_model(store: Store, source: str, *, force: bool = False, face: OpeningFace | None = None) -> LocalModel:
    """Pull `source`; a model that does not fit is fetched only if the face approves, or with `force`.

    Raises DownloadFailed, ModelNotFound, BadGGUF, DoesNotFit.
    """
    shown = face or TerminalFace()
    with shown.pulling(source) as progress:
        return store.pull(source, progress=progress, approve=shown.approve, force=force)


def _starter(store: Store, face: OpeningFace | None) -> LocalModel:
    """The starter model, under whatever source it came here."""
    from edgeinfer.models.store import STARTER_NAME, STARTER_SOURCE

    try:
        return store.find(STARTER_NAME)
    except ModelNotFound:
        return pull_model(store, STARTER_SOURCE, face=face)


def _find_or_pull(store: Store, wanted: str, face: OpeningFace | None) -> LocalModel:
    """The model called `wanted`; pulled when it is a source with a scheme that is not here yet."""
    from edgeinfer.models.sources import parse_source
    from edgeinfer.models.sources.path import SCHEME

    try:
        return store.find(wanted)
    except ModelNotFound:
        if not SCHEME.match(wanted):
            raise
        parse_source(wanted)
    return pull_model(store, wanted, face=face)
