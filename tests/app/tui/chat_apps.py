"""App states for tests: kept chats in a folder of the test, a scripted model, everything closed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from edgeinfer.app.chat.personas import Personas
from edgeinfer.app.mcp.chat_tools import ChatTools
from edgeinfer.app.sessions.autosave import Autosave
from edgeinfer.app.sessions.store import SessionStore
from edgeinfer.app.tui.app import ChatApp
from edgeinfer.app.tui.app_state import AppState, Tuning
from edgeinfer.app.tui.engine import LoadedModel, Opening
from tests.app.tui.scripted import Script, ScriptedModel


@contextmanager
def chat_app(folder: Path) -> Iterator[Callable[..., ChatApp]]:
    """Makes apps: `make(script)`, or with another `opening`, `tools`, `overrides` of settings."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store = stack.enter_context(SessionStore(folder / "chats.db"))
        autosave = stack.enter_context(Autosave(store))

        def make(
            script: Script, opening: Opening | None = None, tools: ChatTools | None = None, **overrides: object
        ) -> ChatApp:
            app = ChatApp(
                AppState(
                    store=store,
                    autosave=autosave,
                    tuning=Tuning(overrides),
                    personas=Personas(folder / "personas"),
                    opening=opening or (lambda settings, face: LoadedModel(ScriptedModel(script))),
                    folder=folder,
                    tools=tools,
                )
            )
            if tools is not None:
                stack.callback(tools.close)
            stack.callback(app.chat_screen.engine.close)
            stack.callback(script.go)
            return app

        yield make
