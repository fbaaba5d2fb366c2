"""The process of one tab: the terminal app, shown in a browser, with a model that runs in the engine's process.

In: the engine's address, from the environment. Out: an exit code. Ends when its tab or the engine ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING

from edgeinfer.app.web.joined import ask, open_joined
from edgeinfer.app.web.wire import Address, Returned, WantOptions
from edgeinfer.ipc.records import read_as

if TYPE_CHECKING:
    from edgeinfer.app.opening.face import WatchedFace
    from edgeinfer.settings import Settings


class Tab:
    """A tab's connection to the engine's process, and the options of its app."""

    def __init__(self, address: Address) -> None:
        """Raises EngineGone."""
        self._connection = address.connect()
        options = ask(self._connection, WantOptions())
        self.options: dict[str, object] = read_as(dict[str, object], options)

    def when_gone(self, leave: Callable[[], None]) -> None:
        """Call `leave` from another thread when the engine's process has ended."""

        def wait() -> None:
            with suppress(EOFError, OSError, ValueError):
                self._connection.receive(Returned)
            leave()

        threading.Thread(target=wait, name="edgeinfer-engine-gone", daemon=True).start()


def run_tab(environ: MutableMapping[str, str]) -> int:
    """Run the app of a tab until it is closed; returns an exit code.

    Raises BadSetting, SessionsFailed, EngineGone.
    """
    from edgeinfer.app.tui.engine import LoadedModel
    from edgeinfer.app.tui.launch import run_app

    address = Address.taken_from(environ)
    assert address is not None, "who calls this has seen it"
    tab = Tab(address)

    def opening(settings: Settings, face: WatchedFace) -> LoadedModel:
        model = open_joined(address, settings, face)
        return LoadedModel(model, model.readings)

    return run_app(tab.options, opening, lambda app: tab.when_gone(app.leave_soon))
