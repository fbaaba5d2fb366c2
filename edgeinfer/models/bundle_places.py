"""Where bundle files lie unless somebody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path


def bundle_path(name: str, fingerprint: str) -> Path:
    """The bundle file of a model: in $EDGEINFER_HOME/bundles, else where the platform keeps what can be made again."""
    home = os.environ.get("EDGEINFER_HOME")
    if home:
        folder = Path(home).expanduser() / "bundles"
    else:
        import platformdirs

        folder = Path(platformdirs.user_cache_dir("edgeinfer", appauthor=False)) / "bundles"
    return folder / f"{name}-{fingerprint[:16]}.bundles"
