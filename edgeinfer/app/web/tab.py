"""The process of one tab: the terminal app, shown in a browser, with a model that runs in the engine's process.

In: the engine's address, from the environment. Out: an exit code. Ends when its tab or the engine ends.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from edgeinfer.app.web.joined import Tab, open_joined
from edgeinfer.app.web.wire import Address

if TYPE_CHECKING:
    from edgeinfer.app.opening_face import WatchedFace
    from edgeinfer.settings import Settings


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
