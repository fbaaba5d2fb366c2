"""Profiles of machines by name or path. The files in this folder are unmeasured machines that list their assumptions.

In: a name ("t4-xeon8") or the path of a file. Out: a `Profile`. An error for an unknown name lists the available ones.
To add a machine, put a file here.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from edgeinfer.errors import BadSetting
from edgeinfer.scheduling.machine.profile import Profile
from edgeinfer.scheduling.machine.profile_file import read_profile

FOLDER = Path(__file__).parent
SUFFIX = ".toml"


def machine_names() -> tuple[str, ...]:
    """Names of the machines that come with edgeinfer."""
    return tuple(sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}")))


def machine_profile(name_or_path: str | Path) -> Profile:
    """The profile of a machine. An argument with a folder or ".toml" in it is a path. Raises BadSetting."""
    name, names = str(name_or_path), machine_names()
    if name in names:
        return read_profile(FOLDER / f"{name}{SUFFIX}")
    if isinstance(name_or_path, Path) or name.endswith(SUFFIX) or Path(name).name != name:
        return read_profile(name_or_path)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
    raise BadSetting(f"no machine is called {name[:80]!r} ({hint}); a path such as ./machine{SUFFIX} works too")
