"""An app that shows the models screen and nothing else."""

from __future__ import annotations

from textual.app import App

from edgeinfer.app.tui.screens.models import ChosenModel, ModelsScreen
from edgeinfer.models.download.policy import DownloadPolicy

QUICK = DownloadPolicy(
    attempts=3, backoff_s=0.01, stall_s=0.5, chunk_bytes=1 << 14, progress_bytes=1 << 14, report_every_s=0
)
"""Of downloads in tests."""


class Bare(App[None]):
    """Keeps what the screen answered."""

    def __init__(self, screen: ModelsScreen, theme: str = "textual-dark") -> None:
        super().__init__()
        self.models = screen
        self.answers: list[ChosenModel | None] = []
        self._wanted_theme = theme

    def on_mount(self) -> None:
        self.theme = self._wanted_theme
        self.push_screen(self.models, self.answers.append)
