"""Which model a command works on, remembering it once it has opened; pulling one, with a question if it does not fit.

In: settings and a store. Out: a `LocalModel`. The order: what was asked for (-m, environment, configuration), the model
used last that is still there, the starter model. Sources that are not here yet are pulled, which a face shows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgeinfer.app.leftovers import remove_all_leftovers
from edgeinfer.app.opening_face import Download
from edgeinfer.app.terminal_face import TerminalFace
from edgeinfer.errors import BadGGUF, EdgeInferError, ModelNotFound, UnsupportedModel
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.app.opening_face import OpeningFace
    from edgeinfer.models.store import LocalModel, ModelStore

Opened = TypeVar("Opened")


def open_chosen(settings: Settings, load: Callable[[Path], Opened], face: OpeningFace | None = None) -> Opened:
    """Choose the model, open it with `load`, and remember it as the last one used, now that it has opened.

    A remembered model that is damaged is said to be so and forgotten; the one before it is opened instead.
    Raises as `choose_model` and `load`.
    """
    from edgeinfer.models.store import ModelStore

    remove_all_leftovers()
    store, shown = ModelStore(), face or TerminalFace()
    model = choose_model(settings, store, face=shown, fetching=lambda: _compile_ahead(settings))
    while True:
        shown.chosen(model.name, model.nbytes)
        try:
            opened = load(model.path)
        except BadGGUF as error:
            if settings.model.model is not None or not store.forget(_remembered_as(model, store)):
                raise
            shown.note(f"{error}; it was the model used last, the one before it is taken instead")
            model = choose_model(settings, store, face=shown)
            continue
        store.remember(_remembered_as(model, store))
        return opened


def choose_model(
    settings: Settings,
    store: ModelStore | None = None,
    *,
    face: OpeningFace | None = None,
    fetching: Callable[[], None] = lambda: None,
) -> LocalModel:
    """The model to work on, pulled first if it has to be; opens none, and remembers none.

    `face`: what shows a pull; None: the terminal. `fetching` is called when the starter model begins to be fetched.
    Raises ModelNotFound, DownloadFailed, DoesNotFit.
    """
    from edgeinfer.models.store import ModelStore

    store, shown = store or ModelStore(), face or TerminalFace()
    if settings.model.model is not None:
        return _find_or_pull(store, settings.model.model, shown)
    found, gone = _last_used(store)
    if gone:
        instead = "the starter model" if found is None else found.name
        shown.note(f"{gone[0]}, the model used last, is not there any more; {instead} is used instead")
        for name in gone:
            store.forget(name)
    return _starter(store, shown, fetching) if found is None else found


def _compile_ahead(settings: Settings) -> None:
    """Use the time in which the starter model is fetched."""
    from edgeinfer.engine.opening import compile_ahead
    from edgeinfer.models.store import STARTER_TYPES

    if settings.load.device in ("auto", "cpu"):
        compile_ahead(settings.load.kv, STARTER_TYPES)


def _last_used(store: ModelStore) -> tuple[LocalModel | None, list[str]]:
    """The model used last that is still there, and the names of later ones that are not."""
    gone: list[str] = []
    for name in store.remembered():
        try:
            return store.find(name), gone
        except (OSError, ValueError, EdgeInferError):
            gone.append(name)
    return None, gone


def _remembered_as(model: LocalModel, store: ModelStore) -> str:
    """The name of a model of the store, the path of another."""
    is_listed = any(known.path == model.path for known in store.models())
    return model.name if is_listed else str(model.path)


def choose_file(settings: Settings, command: str, instead: str) -> LocalModel:
    """The GGUF file that `command` works on. Raises as `choose_model`, and UnsupportedModel for another kind of model.

    `instead`: what works with such a model.
    """
    from edgeinfer.models.decoder_folder import is_decoder_folder

    found = choose_model(settings)
    if is_decoder_folder(found.path):
        raise UnsupportedModel(
            f"{found.path} is a folder with an ONNX decoder, and {command} needs a GGUF file; {instead}"
        )
    return found


def pull_model(store: ModelStore, source: str, *, force: bool = False, face: OpeningFace | None = None) -> LocalModel:
    """Pull `source`; a model that does not fit is fetched only if the face approves, or with `force`.

    Where another process is pulling it already, that pull is waited for, shown on the face.

    Raises DownloadFailed, ModelNotFound, BadGGUF, DoesNotFit.
    """
    shown = face or TerminalFace()
    with shown.pulling(source) as progress:
        return store.pull(
            source,
            progress=progress,
            approve=shown.approve,
            force=force,
            waiting=lambda pid, done_bytes, total_bytes: shown.waiting(source, pid, done_bytes, total_bytes),
        )


def _starter(store: ModelStore, face: OpeningFace, fetching: Callable[[], None]) -> LocalModel:
    """The starter model, under whatever source it came here."""
    from edgeinfer.models.store import STARTER_NAME, STARTER_SOURCE

    try:
        return store.find(STARTER_NAME)
    except ModelNotFound:
        return _pull_starter(store, face, STARTER_NAME, STARTER_SOURCE, fetching)


def _pull_starter(
    store: ModelStore, face: OpeningFace, name: str, source: str, fetching: Callable[[], None] = lambda: None
) -> LocalModel:
    """Pull a model that nobody named, once the face agrees; its size is known before its first byte.

    Another process's pull of it is waited for without a question.
    """
    agreed = False

    def report(done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        nonlocal agreed
        if not agreed:
            face.agree(Download(name, source, total_bytes, len(store.models())))
            agreed = True
            fetching()
        progress(done_bytes, total_bytes, bytes_per_s)

    with face.pulling(source) as progress:
        return store.pull(
            source,
            progress=report,
            approve=face.approve,
            waiting=lambda pid, done_bytes, total_bytes: face.waiting(source, pid, done_bytes, total_bytes),
        )


def _find_or_pull(store: ModelStore, wanted: str, face: OpeningFace | None) -> LocalModel:
    """The model called `wanted`; pulled when it is a source with a scheme that is not here yet."""
    from edgeinfer.models.sources import is_source, parse_source
    from edgeinfer.models.sources.path import SCHEME

    try:
        return store.find(wanted)
    except ModelNotFound:
        if not SCHEME.match(wanted) or not is_source(wanted):  # a name may have a colon: llama3.2:3b
            raise
        parse_source(wanted)
    return pull_model(store, wanted, face=face)
