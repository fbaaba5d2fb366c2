"""State shared by the screens of a running app: saved chats, settings, the model, and how to open one.

In: names and texts of changed settings. Out: `Settings`, and the options of answers. Changes hold for this run only:
the settings screen writes the files. Opens and closes nothing: `launch` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.app.chat.beginning import Beginning, TypedAhead
from edgeinfer.app.chat.chat_modules import ChatModules
from edgeinfer.app.chat.saved_prompts import SavedPrompts
from edgeinfer.app.opening.loading import answer_options
from edgeinfer.app.tui.graphics.pixel_terminal import PixelTerminal
from edgeinfer.settings import Settings, find_option, load_settings, read_value

if TYPE_CHECKING:
    from edgeinfer.app.catalogue.catalogue import Catalogue
    from edgeinfer.app.chat.personas import Personas
    from edgeinfer.app.mcp.chat_tools import ChatTools
    from edgeinfer.app.sessions.autosave import Autosave
    from edgeinfer.app.sessions.snapshots import Snapshots
    from edgeinfer.app.sessions.store import SessionStore
    from edgeinfer.app.tui.engine import EngineModel, Opening
    from edgeinfer.engine.requests.request import Options

NEEDS_RELOAD = ("model", "load")
"""Groups of settings that require reopening the model."""


class Tuning:
    """The settings given at the start, with later changes. `overrides`: values by name, as on the command line."""

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


@dataclass(slots=True)
class AppState:
    """`model` is None until a model is open, and while another one is being opened."""

    store: SessionStore
    autosave: Autosave
    tuning: Tuning
    personas: Personas
    opening: Opening
    folder: Path
    """Folder for the app's histories."""
    prompts: SavedPrompts = field(default_factory=SavedPrompts)
    snapshots: Snapshots | None = None
    modules: ChatModules = field(default_factory=ChatModules)
    """Files that stand before the first question of chats."""
    tools: ChatTools | None = None
    """Tools that answers may call; None if chats have no MCP servers."""
    model: EngineModel | None = None
    catalogue: Catalogue | None = None
    """Catalogue of models, created on first use."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Remapped keys, by command."""
    unsaved: str = ""
    """Why nothing of this run is saved, or "" if it is."""
    beginning: Beginning = field(default_factory=Beginning)
    """What the command line asks the chat to start with."""
    has_few_colours: bool = False
    """Whether the terminal has 16 colours at most."""
    opening_text: str = ""
    """Progress of opening a model, or "" if none is being opened."""
    typed: TypedAhead = field(default_factory=TypedAhead)
    """Input typed before the app took over the terminal."""
    terminal: PixelTerminal = field(default_factory=PixelTerminal)
    """How the terminal draws pictures in pixels, if at all."""

    @property
    def offered_functions(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that answers may call, as the model is told of them; none before their servers have started."""
        toolbox = None if self.tools is None else self.tools.toolbox
        return () if toolbox is None else tuple(tool.function for tool in toolbox.tools.values())
