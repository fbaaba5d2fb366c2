"""Starts the terminal app and cleans up after it.

In: command line settings. Out: an exit code. Opens the saved chats before taking over the terminal, so that errors
print as plain lines. Imports no compute code: the model is opened after the first screen is drawn.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from edgeinfer.app.chat.beginning import TypedAhead
from edgeinfer.app.chat.personas import Personas
from edgeinfer.app.sessions.autosave import Autosave
from edgeinfer.app.sessions.database import IN_MEMORY
from edgeinfer.app.sessions.snapshots import Snapshots
from edgeinfer.app.sessions.store import SessionStore, default_path
from edgeinfer.app.tui.app import ChatApp, has_few_colours
from edgeinfer.app.tui.app_state import AppState, Tuning
from edgeinfer.app.tui.engine import LoadedModel
from edgeinfer.app.tui.graphics.pixel_terminal import ask_terminal
from edgeinfer.errors import SessionsUnwritable

if TYPE_CHECKING:
    from pathlib import Path

    from edgeinfer.app.mcp.chat_tools import ChatTools
    from edgeinfer.app.mcp.servers import ToolServer
    from edgeinfer.app.opening.face import WatchedFace
    from edgeinfer.app.tui.engine import Opening
    from edgeinfer.settings import Settings

KEPT_AFTER_DELETION_S = 30 * 86400.0
SWITCH_S = 0.0002
"""The interpreter's thread switch interval: a compromise between key latency and passes of the model."""


def run_app(
    overrides: Mapping[str, object],
    begins: Callable[[ChatApp], None] | None = None,
    typed: TypedAhead | None = None,
    tool_servers: Sequence[ToolServer] = (),
) -> int:
    """Run the app until the user exits. Returns its exit code. Raises BadSetting, SessionsFailed.

    `begins`: called with the app before it runs; `typed`: input typed until then;
    `tool_servers`: the MCP servers whose tools answers may call.
    """
    sys.setswitchinterval(SWITCH_S)
    with opened(overrides, tool_servers=tool_servers) as app:
        if begins is not None:
            begins(app)
        app.state.typed = typed or app.state.typed
        app.state.has_few_colours = has_few_colours(os.environ)
        if app.state.tuning.settings.face.previews == "auto":
            app.state.terminal, app.state.typed = ask_terminal(app.state.typed, os.environ)
        return app.run() or 0


@contextmanager
def opened(
    overrides: Mapping[str, object], opening: Opening | None = None, tool_servers: Sequence[ToolServer] = ()
) -> Iterator[ChatApp]:
    """An app with its saved chats; on exit all is saved and closed. `opening`: in place of `open_model`, to measure."""
    tuning, tools = Tuning(overrides), _tools(tool_servers)
    path = default_path()
    snapshots = Snapshots(path.parent / "snapshots", snapshot_bytes(tuning.settings.face.snapshots))
    kept, unsaved = _kept_chats(path)
    with kept as store, Autosave(store) as autosave:
        open_kept = open_unsaved if unsaved or not snapshots.cap_bytes else open_model
        state = AppState(store, autosave, tuning, Personas(), opening or open_kept, path.parent)
        state.unsaved, state.snapshots, state.tools = unsaved, None if unsaved else snapshots, tools
        store.purge(KEPT_AFTER_DELETION_S)
        app = ChatApp(state)
        try:
            yield app
        finally:
            if state.catalogue is not None:
                state.catalogue.close()
            is_closed = app.chat_screen.engine.close()
            if tools is not None:
                tools.close()
            if not is_closed:
                _leave_hard(app.return_code or 0, autosave)


def _tools(servers: Sequence[ToolServer]) -> ChatTools | None:
    """The tools of these servers, which start later. Raises BadSetting."""
    if not servers:
        return None
    from edgeinfer.app.mcp.chat_tools import ChatTools

    return ChatTools(servers)


def _kept_chats(path: Path) -> tuple[SessionStore, str]:
    """Open the store, or one in memory if the path is not writable; also returns why chats are not saved, or ""."""
    try:
        return SessionStore(path), ""
    except SessionsUnwritable as reason:
        return SessionStore(IN_MEMORY), str(reason)


def snapshot_bytes(text: str) -> int:
    """Disk space that a setting allows for snapshots; "0" allows none. Raises BadSetting."""
    from edgeinfer.text_values import size_in_bytes

    return 0 if text.strip() == "0" else size_in_bytes(text, 0)


def open_unsaved(settings: Settings, face: WatchedFace) -> LoadedModel:
    """As `open_model`, for chats that are not saved, or of which nothing but the text is."""
    from edgeinfer.app.opening.loading import without_prefixes

    return open_model(without_prefixes(settings), face)


def open_model(settings: Settings, face: WatchedFace) -> LoadedModel:
    """Open the model that the settings ask for, pulling it first if needed."""
    from edgeinfer.app.opening.loading import note_answer, open_llm
    from edgeinfer.app.readings.service import Readings

    llm = open_llm(settings, face)
    try:
        face.check()
        return LoadedModel(llm, Readings(llm), partial(note_answer, llm))
    except BaseException:
        llm.close()
        raise


def _leave_hard(code: int, autosave: Autosave) -> None:
    """Exit the process although a thread, such as a compiler, does not end; pending texts are saved first."""
    autosave.close()
    os._exit(code)
