"""What the screens of one running app share: the kept chats, the engine's thread, the settings, and the open model.

In and out: these. Opens and closes nothing: the app does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from edgeinfer.app.beginning import Beginning
from edgeinfer.app.typed_ahead import TypedAhead

if TYPE_CHECKING:
    from edgeinfer.app.catalogue.catalogue import Catalogue
    from edgeinfer.app.personas import Personas
    from edgeinfer.app.sessions.autosave import Autosave
    from edgeinfer.app.sessions.store import SessionStore
    from edgeinfer.app.snapshots import Snapshots
    from edgeinfer.app.tui.engine import EngineModel, Opening
    from edgeinfer.app.tui.tuning import Tuning


@dataclass(slots=True)
class AppState:
    """`model` is None until one is open, and while another one is being opened."""

    store: SessionStore
    autosave: Autosave
    tuning: Tuning
    personas: Personas
    opening: Opening
    folder: Path
    """Where histories of the app are kept."""
    snapshots: Snapshots | None = None
    model: EngineModel | None = None
    catalogue: Catalogue | None = None
    """Of models, once somebody has looked."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys that were changed, by command."""
    unsaved: str = ""
    """Why nothing of this run is saved, "" where it is."""
    beginning: Beginning = field(default_factory=Beginning)
    """What the command line asks the chat to begin with."""
    opening_text: str = ""
    """What is being done to open a model, "" while nothing is."""
    typed: TypedAhead = field(default_factory=TypedAhead)
    """What was typed before the app had the terminal."""
