"""The settings of a running app: those given at the start, with later changes for this run only.

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
"""Groups of settings that require reopening the model."""


class Tuning:
    """Settings with overrides. `overrides`: values by name, as given on the command line."""

    def __init__(self, overrides: Mapping[str, object] | None = None) -> None:
        self._overrides = dict(overrides or {})
        self.settings: Settings = load_settings(self._overrides)

    @property
    def answer_options(self) -> Options:
        """Options for the next answer."""
        return answer_options(self.settings)

    def put(self, name: str, text: str | None) -> object:
        """Change a setting for this run; None or "default" reverts it. Returns its value. Raises BadSetting."""
        key = find_option(name).name
        changed = {other: value for other, value in self._overrides.items() if other != key}
        if text is not None and text.strip().lower() != "default":
            changed[key] = read_value(key, text, f"/{key}")
        self.settings, self._overrides = load_settings(changed), changed
        return self.settings.value(key)

    def reread(self) -> Settings:
        """Reread the settings files and the environment. Raises BadSetting, and then keeps the previous settings."""
        self.settings = load_settings(self._overrides)
        return self.settings


def needs_reload(name: str) -> bool:
    """Whether the model must be reopened for a setting to take effect."""
    return find_option(name).group in NEEDS_RELOAD
