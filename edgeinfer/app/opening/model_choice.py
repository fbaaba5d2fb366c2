"""Chooses the model a command works on, remembers it once it has opened, and pulls it if needed.

In: settings and a store. Out: a `LocalModel`. The order: what was requested (-m, environment, configuration), the model
used last that still exists, the one pulled last, the one that the user chooses first, the starter model. What is not on
this machine is pulled, with progress and, for a model that does not fit, a question shown by a face.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from edgeinfer.app.opening.face import Download
from edgeinfer.app.opening.terminal_face import TerminalFace
from edgeinfer.errors import BadGGUF, EdgeInferError, ModelNotFound, UnsupportedModel
from edgeinfer.settings import Settings

if TYPE_CHECKING:
    from edgeinfer.app.opening.face import OpeningFace
    from edgeinfer.models.store import LocalModel, ModelStore

Opened = TypeVar("Opened")


def open_chosen(settings: Settings, load: Callable[[LocalModel], Opened], face: OpeningFace | None = None) -> Opened:
    """Choose the model, open it with `load`, and remember it as the last one used once it has opened.

    A remembered model that is damaged is reported and forgotten; the one used before it is opened instead. Raises as
    `choose_model` and `load`.
    """
    from edgeinfer.app.removal import remove_all_leftovers
    from edgeinfer.models.store import ModelStore

    remove_all_leftovers()
    store, shown = ModelStore(), face or TerminalFace()
    model = choose_model(settings, store, face=shown, fetching=lambda: _compile_ahead(settings))
    while True:
        shown.chosen(model.name, model.nbytes)
        try:
            opened = load(model)
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
    """The model to work on, pulled first if needed. Neither opens nor remembers it.

    `face`: where a pull is shown; None: the terminal. `fetching` is called when the download of the starter model
    begins. Raises ModelNotFound, DownloadFailed, DoesNotFit.
    """
    from edgeinfer.models.store import ModelStore

    store, shown = store or ModelStore(), face or TerminalFace()
    if settings.model.model is not None:
        return _find_or_pull(store, settings.model.model, shown)
    found, gone = _last_used(store)
    found = found or _last_pulled(store)
    if gone:
        instead = "the starter model" if found is None else found.name
        shown.note(f"{gone[0]}, the model used last, is not there any more; {instead} is used instead")
        for name in gone:
            store.forget(name)
    return _starter(store, shown, fetching) if found is None else found


def _compile_ahead(settings: Settings) -> None:
    """Compile kernels while the starter model is downloading."""
    from edgeinfer.engine.opening.evaluator import compile_ahead
    from edgeinfer.models.store import STARTER_TYPES

    if settings.load.device in ("auto", "cpu"):
        compile_ahead(settings.load.kv, STARTER_TYPES)


def _last_used(store: ModelStore) -> tuple[LocalModel | None, list[str]]:
    """The model used last that still exists, and the names of more recent ones that do not."""
    gone: list[str] = []
    for name in store.remembered():
        try:
            return store.find(name), gone
        except (OSError, ValueError, EdgeInferError):
            gone.append(name)
    return None, gone


def _last_pulled(store: ModelStore) -> LocalModel | None:
    """The model pulled last, if it writes text."""
    from edgeinfer.models.file_facts import is_embedder

    found = store.last_pulled()
    try:
        return None if found is None or is_embedder(found.path) else found
    except (OSError, EdgeInferError):
        return None


def _remembered_as(model: LocalModel, store: ModelStore) -> str:
    """The name of a model in the store, otherwise its path."""
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
    """Pull `source`. A model that does not fit is downloaded only if the face approves, or with `force`.

    If another process is already pulling it, wait for that pull, shown on the face.

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
    """The starter model, under whatever source it came here; else the model that the user chooses first."""
    from edgeinfer.models.store import STARTER_NAME, STARTER_SOURCE

    try:
        return store.find(STARTER_NAME)
    except ModelNotFound:
        chosen = None if store.is_pulling(STARTER_SOURCE) else face.first_model()
        if chosen not in (None, STARTER_NAME):
            return _find_or_pull(store, chosen, face)
        return _pull_starter(store, face, STARTER_NAME, STARTER_SOURCE, fetching, agreed=chosen is not None)


def _pull_starter(
    store: ModelStore,
    face: OpeningFace,
    name: str,
    source: str,
    fetching: Callable[[], None] = lambda: None,
    *,
    agreed: bool = False,
) -> LocalModel:
    """Pull a model that the user did not name, if the face agrees; its size is known before the download begins.

    If another process is pulling it, wait for that without asking. `agreed`: the user has chosen it already.
    """
    has_begun = False

    def report(done_bytes: int, total_bytes: int | None, bytes_per_s: float) -> None:
        nonlocal has_begun
        if not has_begun:
            if not agreed:
                face.agree(Download(name, source, total_bytes, len(store.models())))
            has_begun = True
            fetching()
        progress(done_bytes, total_bytes, bytes_per_s)

    with face.pulling(source) as progress:
        return store.pull(
            source,
            progress=report,
            approve=face.approve,
            waiting=lambda pid, done_bytes, total_bytes: face.waiting(source, pid, done_bytes, total_bytes),
        )


def found_or_source(store: ModelStore, wanted: str) -> LocalModel | None:
    """The model called `wanted`; None if it is not here, and a source with a scheme or a known short name.

    Raises ModelNotFound for anything else.
    """
    try:
        return store.find(wanted)
    except ModelNotFound as error:
        from edgeinfer.models.known_models import known_model, near_names
        from edgeinfer.models.sources import MOST_NEAR, is_source, parse_source
        from edgeinfer.models.sources.path import SCHEME, names_repository

        is_known = known_model(wanted)[0] is not None
        if not (is_known or SCHEME.match(wanted)) or not is_source(wanted):  # a name may have a colon: llama3.2:3b
            if names_repository(wanted):
                raise ModelNotFound(f"{error}; a repository of the hub: edgeinfer pull {wanted}") from None
            near = near_names(wanted)[:MOST_NEAR]
            raise ModelNotFound(f"{error}; such as {' or '.join(near)}" if near else str(error)) from None
        parse_source(wanted)
    return None


def _find_or_pull(store: ModelStore, wanted: str, face: OpeningFace | None) -> LocalModel:
    """The model called `wanted`, pulled if it is not here yet."""
    return found_or_source(store, wanted) or pull_model(store, wanted, face=face)
