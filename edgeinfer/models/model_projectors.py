"""The projector files that may be those of a model on this machine.

In: the path of a model's file, and where the store has it from. Out: paths, best first.
"""

from __future__ import annotations

from pathlib import Path

from edgeinfer.models.ollama_params import ollama_params
from edgeinfer.models.projector_choice import projectors_beside


def projectors_of(path: Path, source: str = "") -> list[Path]:
    """The projector files that may be those of a model's file, best first: of Ollama's name, or beside it.

    `source`: where the store has the model from.
    """
    own = ollama_params(path, source).projector
    return projectors_beside(path) if own is None else [own]
