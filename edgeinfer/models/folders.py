"""Where models are kept.

In: the environment. Out: a path. Apart from the store, so that whoever only needs a folder imports nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path

from edgeinfer.path_text import user_path


def default_root() -> Path:
    """The folder of models: in $EDGEINFER_HOME, else where the platform keeps a user's data."""
    home = os.environ.get("EDGEINFER_HOME")
    if home:
        return user_path(home) / "models"
    import platformdirs

    return Path(platformdirs.user_data_dir("edgeinfer", appauthor=False)) / "models"
