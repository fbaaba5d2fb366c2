"""The projectors that may be those of a model on this machine: in files of their own, or in the model's.

In: the path of a model's file, and where the store has it from. Out: paths, best first. Reads only beginnings of files.
"""

from __future__ import annotations

from pathlib import Path

from edgeinfer.errors import BadGGUF
from edgeinfer.models.file_facts import header_facts
from edgeinfer.models.gguf.inner_projectors import HOLDERS
from edgeinfer.models.ollama_params import ollama_params
from edgeinfer.models.projector_choice import projectors_beside


def projectors_of(path: Path, source: str = "") -> list[Path]:
    """The projector files that may be those of a model's file, best first: of Ollama's name, or beside it.

    `source`: where the store has the model from.
    """
    own = ollama_params(path, source).projector
    return projectors_beside(path) if own is None else [own]


def may_hold_projector(path: Path) -> bool:
    """Whether a model's file may have its projector in it, as far as its architecture says: such files are few."""
    try:
        return header_facts(path).architecture in HOLDERS
    except BadGGUF:
        return False
