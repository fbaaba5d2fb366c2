"""Where models are stored.

In: the environment. Out: a path. Separate from the store, so that code needing only the folder imports nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path

from edgeinfer.text_values import user_path


def default_root() -> Path:
    """The models folder: in $EDGEINFER_HOME, else in the platform's user data directory."""
    home = os.environ.get("EDGEINFER_HOME")
    if home:
        return user_path(home) / "models"
    import platformdirs

    return Path(platformdirs.user_data_dir("edgeinfer", appauthor=False)) / "models"
