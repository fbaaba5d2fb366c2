"""An app that shows the models screen and nothing else."""

from __future__ import annotations

from textual.app import App

from edgeinfer.app.tui.screens.models import Chosen, ModelsScreen


class Bare(App[None]):
    """Keeps what the screen answered."""

    def __init__(self, screen: ModelsScreen, theme: str = "textual-dark") -> None:
        super().__init__()
        self.models = screen
        self.answers: list[Chosen | None] = []
        self._wanted_theme = theme

    def on_mount(self) -> None:
        self.theme = self._wanted_theme
        self.push_screen(self.models, self.answers.append)
