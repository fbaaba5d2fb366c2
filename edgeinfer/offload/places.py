"""Default places of bundle files: one folder for all models, with the model's fingerprint in each file name.

In: a model's name and fingerprint. Out: paths. A model that was moved or renamed is found again by its fingerprint.
Does not know what is in a bundle file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from edgeinfer.text_values import user_path

SUFFIX = ".bundles"
WHOLE = ".whole"
"""Suffix, before SUFFIX, of a file whose layers are read whole although they could be read by neurons."""
PART_SUFFIX = ".part"
"""Suffix of a half-written file, after its final name."""
NEURONS = "-neurons"
"""Part of a file's name if the model's small activations count as zero: some matrices are laid out differently."""
VARIANTS = ("", WHOLE, NEURONS, NEURONS + WHOLE)
FINGERPRINT_DIGITS = 16
_UNSAFE = re.compile(r"[^\w.+\-@()]+")


def bundles_folder() -> Path:
    """The folder of bundle files: in $EDGEINFER_HOME if it is set, else in the platform's cache folder."""
    home = os.environ.get("EDGEINFER_HOME")
    if home:
        return user_path(home) / "bundles"
    import platformdirs

    return Path(platformdirs.user_cache_dir("edgeinfer", appauthor=False)) / "bundles"


def bundle_path(name: str, fingerprint: str, variant: str = "") -> Path:
    """The existing bundle file of a model, whatever name the model had when it was written, or the path for a new one.

    `variant`: another layout of the same model, such as WHOLE.
    """
    ending = f"-{fingerprint[:FINGERPRINT_DIGITS]}{variant}{SUFFIX}"
    folder = bundles_folder()
    found = sorted(path for path in folder.glob(f"*{ending}") if path.is_file())
    return found[0] if found else folder / f"{file_stem(name)}{ending}"


def file_stem(name: str) -> str:
    """The start of the bundle file's name for a model of this name."""
    return _UNSAFE.sub("_", name)[:100]


def is_whole(path: Path) -> bool:
    """Whether a file's name says that its layers are read whole although they could be read by neurons."""
    return path.name.endswith(f"{WHOLE}{SUFFIX}")


def pack_options(path: Path) -> str:
    """The options of `edgeinfer pack MODEL` that make a file of this name, each after a space."""
    plain = path.name.removesuffix(SUFFIX).removesuffix(WHOLE)
    return f"{' --approx T' if plain.endswith(NEURONS) else ''}{' --whole' if is_whole(path) else ''}"


def firing_path(fingerprint: str) -> Path:
    """Path of the file that records how the neurons of a model fired."""
    return bundles_folder() / f"{fingerprint[:FINGERPRINT_DIGITS]}.firing.json"


def whole_path(path: Path) -> Path:
    """Path of the variant of a bundle file whose layers are read whole; it lies beside the file."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}{WHOLE}{SUFFIX}")


def part_path(path: Path) -> Path:
    """Path under which a bundle file is written until it is complete."""
    return path.with_name(path.name + PART_SUFFIX)


def remove_bundles(path: Path) -> int:
    """Delete a bundle file, complete or half-written, and its variant whose layers are read whole.

    Returns the bytes freed. Raises OSError.
    """
    freed, beside = 0, whole_path(path)
    for each in (path, part_path(path), beside, part_path(beside)):
        if each.is_file():
            freed += each.stat().st_size
            each.unlink()
    return freed
