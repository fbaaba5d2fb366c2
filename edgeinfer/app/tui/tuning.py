"""The settings of a running app: what was given at the start, and what was changed since, for this run only.

In: names and texts. Out: `Settings`, and the options of answers. Writes no file: the settings screen does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgeinfer.app.opening import answer_options
from edgeinfer.settings import Settings, find_option, load_settings, read_value

if TYPE_CHECKING:
    from edgeinfer.engine.requests.request import Options

NEEDS_RELOAD = ("model", "load")
"""Groups of settings that a loaded model was opened with."""


class Tuning:
    """Settings with changes on top. `overrides`: by name, as the command line gave them."""

    def __init__(self, overrides: Mapping[str, object] | None = None) -> None:
        self._overrides = dict(overrides or {})
        self.settings: Settings = load_settings(self._overrides)

    @property
    def answer_options(self) -> Options:
        """How answers are to be."""
        return answer_options(self.settings)

    def put(self, name: str, text: str | None) -> object:
        """Set a setting for this run, None or "default" to take the change back; its value. Raises BadSetting."""
        key = find_option(name).name
        changed = {other: value for other, value in self._overrides.items() if other != key}
        if text is not None and text.strip().lower() != "default":
            changed[key] = read_value(key, text, f"/{key}")
        self.settings, self._overrides = load_settings(changed), changed
        return self.settings.value(key)

    def reread(self) -> Settings:
        """Read files and environment again: one of them has changed. Raises BadSetting, and keeps what it had."""
        self.settings = load_settings(self._overrides)
        return self.settings


def needs_reload(name: str) -> bool:
    """Whether a loaded model has to be opened again for a setting to count."""
    return find_option(name).group in NEEDS_RELOAD
