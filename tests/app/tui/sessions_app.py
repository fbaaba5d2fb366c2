"""An app that shows the sessions screen and nothing else."""

from __future__ import annotations

from textual.app import App
from textual.widgets import Static

from edgeinfer.app.tui.screens.sessions import ChosenChat, SessionsScreen
from edgeinfer.app.tui.widgets.session_list import SessionList
from edgeinfer.app.tui.widgets.text_fields import SearchField


class Bare(App[None]):
    """Keeps what the screen answered."""

    def __init__(self, screen: SessionsScreen, theme: str = "textual-dark") -> None:
        super().__init__()
        self.sessions = screen
        self.answers: list[ChosenChat | None] = []
        self._wanted_theme = theme

    def on_mount(self) -> None:
        self.theme = self._wanted_theme
        self.push_screen(self.sessions, self.answers.append)

    @property
    def listed(self) -> SessionList:
        return self.sessions.query_one(SessionList)

    @property
    def field(self) -> SearchField:
        return self.sessions.query_one(SearchField)

    @property
    def titles(self) -> list[str]:
        return [row.title for row in self.listed.rows]

    @property
    def notice(self) -> str:
        line = self.sessions.query_one("#sessions-notice", Static)
        return str(line.render()) if line.display else ""
