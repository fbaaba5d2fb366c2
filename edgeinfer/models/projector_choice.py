"""Which projector file belongs to a model: the one that is named, else one that lies beside it.

In: the path of a model. Out: paths of projector files beside it, best first. Knows file names alone: whether one fits
a model is seen when both are open. Publishers call these files `mmproj-F16.gguf`, `mmproj-model-f16.gguf`, or
`mmproj-NAME-Q8_0.gguf` and `NAME-mmproj-f16.gguf` beside `NAME-Q4_K_M.gguf`.
"""

from __future__ import annotations

import re
from pathlib import Path

from edgeinfer.models.file_names import is_model_file, quant_of, without_quant

PROJECTOR = re.compile(r"(?:.*[.\-_])?mmproj(?:[.\-_].*)?\.gguf", re.IGNORECASE)
_WORD = re.compile(r"(?:^|[.\-_])mmproj(?=$|[.\-_])", re.IGNORECASE)
PREFERRED = ("F16", "BF16", "Q8_0", "F32")
"""Quant formats of projectors, the most usual one first."""


def is_projector_name(file_name: str) -> bool:
    """Whether a file is named as projector files are."""
    return PROJECTOR.fullmatch(file_name) is not None


def own_name(file_name: str) -> str:
    """The name of the model that a projector file's name has in it, in small letters; "" if it has none."""
    rest = without_quant(_WORD.sub("", file_name[: -len(".gguf")])).strip(".-_").lower()
    return "" if rest == "model" else rest


def projectors_beside(path: Path) -> list[Path]:
    """Projector files beside a model's file that may be its own, best first.

    One without a model's name counts if all models in the folder are the same one, in several quants.
    """
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix.lower() == ".gguf")
    except OSError:
        return []
    model = without_quant(path.name).lower()
    models = {without_quant(name).lower() for name in names if is_model_file(name)}
    found = [
        name
        for name in names
        if is_projector_name(name) and (model.startswith(own_name(name)) if own_name(name) else models <= {model})
    ]
    return [path.with_name(name) for name in sorted(found, key=_rank)]


def _rank(name: str) -> tuple[int, int, str]:
    """Longer names first, then by quant."""
    quant = quant_of(name) or ""
    return -len(own_name(name)), PREFERRED.index(quant) if quant in PREFERRED else len(PREFERRED), name
