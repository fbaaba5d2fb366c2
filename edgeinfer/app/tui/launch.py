"""Starting the terminal app and cleaning up after it.

In: what the command line gave. Out: an exit code. Opens the kept chats before the screen is taken, so that what is wrong
with them is told in a line; imports nothing that computes: the model is opened behind the first screen.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.app.personas import Personas
from edgeinfer.app.sessions.autosave import Autosave
from edgeinfer.app.sessions.store import SessionStore, default_path
from edgeinfer.app.snapshots import Snapshots
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.desk import Desk
from edgeinfer.app.tui.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgeinfer.app.tui.engine import Model
    from edgeinfer.settings import Settings

SWITCH_S = 0.001
"""How long a thread may keep the interpreter while another one waits: keys count, and so do passes of the model."""


def run_app(overrides: Mapping[str, object]) -> int:
    """Run the app until the user leaves; its exit code. Raises BadSetting, SessionsFailed."""
    tuning = Tuning(overrides)
    path = default_path()
    sys.setswitchinterval(SWITCH_S)
    with SessionStore(path) as store, Autosave(store) as autosave:
        desk = Desk(store, autosave, tuning, Personas(), open_model, path.parent, Snapshots(path.parent / "snapshots"))
        app = ChatApp(desk)
        code = app.run()
        if not app.chat_screen.engine.close():
            _leave_hard(code or 0, autosave)
    return code or 0


def open_model(settings: Settings, progress: Callable[[str, int, int], None]) -> Model:
    """Open the model that settings ask for, pulling it first if need be."""
    from edgeinfer.app.opening import open_llm

    return open_llm(settings, progress)


def _leave_hard(code: int, autosave: Autosave) -> None:
    """Something does not end, such as a compiler: what is to be saved is saved, and the process goes."""
    autosave.close()
    os._exit(code)
