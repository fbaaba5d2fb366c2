"""State shared by the screens of a running app: saved chats, settings, the model, and how to open one.

Opens and closes nothing: `launch` does.
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
    """`model` is None until a model is open, and while another one is being opened."""

    store: SessionStore
    autosave: Autosave
    tuning: Tuning
    personas: Personas
    opening: Opening
    folder: Path
    """Folder for the app's histories."""
    snapshots: Snapshots | None = None
    model: EngineModel | None = None
    catalogue: Catalogue | None = None
    """Catalogue of models, created on first use."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Remapped keys, by command."""
    unsaved: str = ""
    """Why nothing of this run is saved, or "" if it is."""
    beginning: Beginning = field(default_factory=Beginning)
    """What the command line asks the chat to start with."""
    opening_text: str = ""
    """Progress of opening a model, or "" if none is being opened."""
    typed: TypedAhead = field(default_factory=TypedAhead)
    """Input typed before the app took over the terminal."""
