"""What speculation learnt of a model, kept in the user's data folder for the next time, and given up on request.

In: a folder for each model. Out: arrays by name. Two files: `primed.npz`, which says nothing of any user, and
`learnt.npz`, which holds tokens of what was said and is readable by the user alone. A file that is damaged, or of
another layout, counts as none; one that cannot be written is left alone. Sizes are bounded by the tables' own.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeinfer.temporary import temporary_file

Arrays = Mapping[str, NDArray[Any]]

PRIMED, LEARNT = "primed.npz", "learnt.npz"
LAYOUT = "layout"


def default_root() -> Path:
    """The folder of what was learnt: beside the models."""
    from edgeinfer.models.store import default_root as models_root

    return models_root().parent / "drafts"


class DraftFolder:
    """What is kept of one model. `layout` names everything that the arrays' meaning depends on."""

    def __init__(self, fingerprint: str, layout: str, root: Path | None = None) -> None:
        self.path = (root or default_root()) / fingerprint
        self._layout = layout

    def read(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of a file; none where there is none that is whole and of this layout."""
        try:
            with (self.path / name).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return {}
        return arrays if str(arrays.pop(LAYOUT, "")) == self._layout else {}

    def write(self, name: str, arrays: Arrays) -> None:
        """Write a file, whole or not at all, if it can be written."""
        with contextlib.suppress(OSError):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, beside = temporary_file(self.path / name)  # for the user alone
            try:
                with os.fdopen(handle, "wb") as file:
                    np.savez(file, **{LAYOUT: np.array(self._layout)}, **arrays)  # type: ignore[arg-type]
                os.replace(beside, self.path / name)
            except BaseException:
                Path(beside).unlink(missing_ok=True)
                raise


def clear_history(root: Path | None = None) -> int:
    """Forget what was learnt of texts, of all models; how many files are gone."""
    found = sorted((root or default_root()).glob(f"*/{LEARNT}"))
    for path in found:
        path.unlink()
    return len(found)
