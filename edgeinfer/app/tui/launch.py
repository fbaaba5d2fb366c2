"""Starting the terminal app and cleaning up after it.

In: what the command line gave. Out: an exit code. Opens the kept chats before the screen is taken, so that what is
wrong with them is told in a line; imports nothing that computes: the model is opened behind the first screen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from edgeinfer.app.personas import Personas
from edgeinfer.app.sessions.autosave import Autosave
from edgeinfer.app.sessions.database import IN_MEMORY
from edgeinfer.app.sessions.store import SessionStore, default_path
from edgeinfer.app.snapshots import Snapshots
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.app_state import AppState
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.app.tui.tuning import Tuning
from edgeinfer.app.typed_ahead import TypedAhead
from edgeinfer.errors import SessionsUnwritable

if TYPE_CHECKING:
    from pathlib import Path

    from edgeinfer.app.opening_face import WatchedFace
    from edgeinfer.app.tui.engine import Opening
    from edgeinfer.settings import Settings

KEPT_AFTER_DELETION_S = 30 * 86400.0
SWITCH_S = 0.0002
"""How long a thread may keep the interpreter while another one waits: keys count, and so do passes of the model."""


def run_app(
    overrides: Mapping[str, object],
    opening: Opening | None = None,
    begins: Callable[[ChatApp], None] | None = None,
    typed: TypedAhead | None = None,
) -> int:
    """Run the app until the user leaves; its exit code. Raises BadSetting, SessionsFailed.

    `opening`: opens models, instead of ours; `begins` is told of the app before it runs; `typed`: keys from before.
    """
    sys.setswitchinterval(SWITCH_S)
    with opened(overrides, opening) as app:
        if begins is not None:
            begins(app)
        app.state.typed = typed or app.state.typed
        return app.run() or 0


@contextmanager
def opened(overrides: Mapping[str, object], opening: Opening | None = None) -> Iterator[ChatApp]:
    """An app with its kept chats; afterwards all is saved and closed. `opening`: instead of ours, for measurements."""
    tuning = Tuning(overrides)
    path = default_path()
    snapshots = Snapshots(path.parent / "snapshots", snapshot_bytes(tuning.settings.face.snapshots))
    kept, unsaved = _kept_chats(path)
    with kept as store, Autosave(store) as autosave:
        state = AppState(store, autosave, tuning, Personas(), opening or open_model, path.parent)
        state.unsaved, state.snapshots = unsaved, None if unsaved else snapshots
        store.purge(KEPT_AFTER_DELETION_S)
        app = ChatApp(state)
        try:
            yield app
        finally:
            if state.catalogue is not None:
                state.catalogue.close()
            if not app.chat_screen.engine.close():
                _leave_hard(app.return_code or 0, autosave)


def _kept_chats(path: Path) -> tuple[SessionStore, str]:
    """The kept chats, and why this run's are not saved, "" where they are: then they last as long as the app."""
    try:
        return SessionStore(path), ""
    except SessionsUnwritable as reason:
        return SessionStore(IN_MEMORY), str(reason)


def snapshot_bytes(text: str) -> int:
    """The room that a setting gives to snapshots; "0" gives none. Raises BadSetting."""
    from edgeinfer.size_text import size_in_bytes

    return 0 if text.strip() == "0" else size_in_bytes(text, 0)


def open_model(settings: Settings, face: WatchedFace) -> LoadedModel:
    """Open the model that settings ask for, pulling it first if need be."""
    from edgeinfer.app.opening import note_answer, open_llm
    from edgeinfer.app.readings.service import Readings

    llm = open_llm(settings, face)
    try:
        face.check()
        return LoadedModel(llm, Readings(llm), partial(note_answer, llm))
    except BaseException:
        llm.close()
        raise


def _leave_hard(code: int, autosave: Autosave) -> None:
    """Something does not end, such as a compiler: what is to be saved is saved, and the process goes."""
    autosave.close()
    os._exit(code)
