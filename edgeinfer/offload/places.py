"""Where bundle files lie unless the user says otherwise: one folder for all models, names with their fingerprints.

In: a model's name and fingerprint. Out: paths. A model that moved or was renamed is found again by its fingerprint.
Does not know what is in a bundle file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from edgeinfer.path_text import user_path

SUFFIX = ".bundles"
WHOLE = ".whole"
"""Ends the name of a file whose layers are read whole though they could be read by neurons, before the suffix."""
PART_SUFFIX = ".part"
"""Ends the name of a half-written file, after the name that it will have."""
NEURONS = "-neurons"
"""In the name of a file of a model whose small activations count as zero: its products lie in another way."""
VARIANTS = ("", WHOLE, NEURONS, NEURONS + WHOLE)
FINGERPRINT_DIGITS = 16
_UNSAFE = re.compile(r"[^\w.+\-@()]+")


def bundles_folder() -> Path:
    """The folder of bundle files: in $EDGEINFER_HOME, else where the platform keeps what can be made again."""
    home = os.environ.get("EDGEINFER_HOME")
    if home:
        return user_path(home) / "bundles"
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgeinfer", appauthor=False)) / "bundles"


def bundle_path(name: str, fingerprint: str, variant: str = "") -> Path:
    """The bundle file of a model, whatever the model was called when it was written; where it will be, if nowhere.

    `variant`: of the same model in another layout, such as WHOLE.
    """
    ending = f"-{fingerprint[:FINGERPRINT_DIGITS]}{variant}{SUFFIX}"
    folder = bundles_folder()
    found = sorted(path for path in folder.glob(f"*{ending}") if path.is_file())
    return found[0] if found else folder / f"{file_stem(name)}{ending}"


def file_stem(name: str) -> str:
    """How names of bundle files begin that are written for a model of this name."""
    return _UNSAFE.sub("_", name)[:100]


def is_whole(path: Path) -> bool:
    """Whether a file is one whose layers are read whole though they could be read by neurons, by its name."""
    return path.name.endswith(f"{WHOLE}{SUFFIX}")


def pack_options(path: Path) -> str:
    """What `edgeinfer pack MODEL` is given for a file of this name beside the model, each after a space."""
    plain = path.name.removesuffix(SUFFIX).removesuffix(WHOLE)
    return f"{' --approx T' if plain.endswith(NEURONS) else ''}{' --whole' if is_whole(path) else ''}"


def firing_path(fingerprint: str) -> Path:
    """Where it is kept how the neurons of a model fired."""
    return bundles_folder() / f"{fingerprint[:FINGERPRINT_DIGITS]}.firing.json"


def whole_path(path: Path) -> Path:
    """Where the file lies, beside a bundle file, whose layers are read whole."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}{WHOLE}{SUFFIX}")


def part_path(path: Path) -> Path:
    """Where a bundle file is written before it is whole."""
    return path.with_name(path.name + PART_SUFFIX)


def remove_bundles(path: Path) -> int:
    """Delete a bundle file, ready or half-written, with the one beside it whose layers are read whole.

    Gives the bytes they took. Raises OSError.
    """
    freed, beside = 0, whole_path(path)
    for each in (path, part_path(path), beside, part_path(beside)):
        if each.is_file():
            freed += each.stat().st_size
            each.unlink()
    return freed
